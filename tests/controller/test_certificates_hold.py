"""The channel's certificates: kept while good, made anew in time, and accepted by a TLS client."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from rex_operator.controller.pki import CA_DAYS, SERVING_DAYS, renew

HOSTS = ["rex-channel", "rex-channel.rex-system.svc", "127.0.0.1"]
NOW = datetime.now(UTC)


def test_good_certificates_are_kept() -> None:
    held = renew(None, HOSTS, NOW)
    assert renew(held, HOSTS, NOW + timedelta(days=SERVING_DAYS - 31)) == held


def test_the_serving_certificate_is_renewed_in_time_and_the_ca_stays() -> None:
    held = renew(None, HOSTS, NOW)
    later = renew(held, HOSTS, NOW + timedelta(days=SERVING_DAYS - 29))
    assert later.ca == held.ca and later.serving != held.serving
    moved = renew(held, ["elsewhere"], NOW)
    assert moved.ca == held.ca and moved.serving != held.serving


def test_an_old_or_foreign_ca_is_replaced() -> None:
    held, other = renew(None, HOSTS, NOW), renew(None, HOSTS, NOW)
    assert renew(held, HOSTS, NOW + timedelta(days=CA_DAYS - 1)).ca != held.ca
    mixed = replace(held, ca=other.ca, ca_key=other.ca_key)
    assert renew(mixed, HOSTS, NOW).serving != held.serving


async def test_a_client_that_trusts_the_ca_connects_by_name_and_by_address() -> None:
    held = renew(None, HOSTS, NOW)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=held.ssl_context())
    port = server.sockets[0].getsockname()[1]
    trust = ssl.create_default_context(cadata=held.ca)
    try:
        for name in ("127.0.0.1", "rex-channel.rex-system.svc"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust, server_hostname=name)
            writer.write(b"hello\n")
            assert await reader.readline() == b"hello\n"
            writer.close()
            await writer.wait_closed()
    finally:
        server.close()
        await server.wait_closed()
