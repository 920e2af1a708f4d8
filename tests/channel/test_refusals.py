"""Who is not let in, and what a hostile or broken sender can cost: its own connection."""

from __future__ import annotations

import asyncio
import gzip
import logging

import aiohttp
import pytest

from rex_operator.channel import Identity, Refused
from rex_worker.protocol import MAX_MESSAGE_BYTES, Hello, Ready, encode
from tests.channel.wire import W0, Wire, close_code, hello, plan, read, serving

STEPS = '{"kind": "Steps", "generation": 1, "steps": [%s]}'
STEP = (
    '{"step": 1, "plan_version": 1, "samples": 8, "local_batch": 8, '
    '"compute_s": 0.1, "wait_s": 0.1, "step_s": 0.2, "loss": %s}'
)


async def refused(wire: Wire, identity: Identity, token: str) -> bool:
    before = len(wire.log.events)
    try:
        async with wire.socket(token) as socket:
            await socket.send_str(encode(hello(identity)))
            code = await close_code(socket)
    except aiohttp.WSServerHandshakeError as error:
        return error.status == 401 and len(wire.log.events) == before
    return code == aiohttp.WSCloseCode.POLICY_VIOLATION and len(wire.log.events) == before


async def test_c_201_no_token_wrong_token_another_workers_token_an_old_token() -> None:
    other = Identity("ns/other", "w0", "life-1")
    async with serving() as wire:
        wire.tokens.allow(W0, "token-a")
        wire.tokens.allow(other, "token-b")
        assert await refused(wire, W0, "")
        assert await refused(wire, W0, "guess")
        assert await refused(wire, W0, "token-b")
        wire.tokens.revoke(W0)
        assert await refused(wire, W0, "token-a")
        assert wire.server.counters["refused"] == 3
        assert wire.server.counters["refused-no-token"] == 1


async def test_c_201_a_worker_speaks_only_for_itself() -> None:
    async def confused(token: str, claim: Hello) -> Identity:
        return Identity("ns/job", "w1", "life-1")

    async with serving() as wire:
        wire.server._authenticate = confused
        assert await refused(wire, W0, "any")


async def test_c_204_a_refused_token_appears_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving() as wire:
        wire.tokens.allow(W0, "CANARY-1")
        assert await refused(wire, W0, "CANARY-2")
    assert "refused" in caplog.text
    assert "CANARY" not in caplog.text


async def test_another_protocol_is_refused_with_words() -> None:
    async with serving() as wire:
        wire.tokens.allow(W0, "secret")
        async with wire.socket() as socket:
            await socket.send_str(encode(hello(W0, protocol=2)))
            message = await socket.receive()
            assert message.extra is not None
            assert "protocol 2" in message.extra


async def test_an_authenticator_that_refuses_says_why() -> None:
    async def never(token: str, claim: Hello) -> Identity:
        raise Refused("the pod is gone")

    async with serving() as wire:
        wire.server._authenticate = never
        async with wire.socket() as socket:
            await socket.send_str(encode(hello()))
            assert (await socket.receive()).extra == "the pod is gone"


@pytest.mark.parametrize(
    "text",
    [
        STEPS % (STEP % "NaN"),
        STEPS % (STEP % "Infinity"),
        STEPS % (STEP % "1e400"),
        STEPS % (STEP % '"12"'),
        STEPS % (STEP % "true"),
        STEPS % (STEP % "1").replace('"samples": 8', '"samples": -1'),
        STEPS % (STEP % "1").replace('"samples": 8', f'"samples": {"9" * 400}'),
        STEPS % "null",
        "null",
        "[]",
        '{"kind": "Stop"}',
        '{"kind": "Ready", "unknown": 1}',
        "not json",
        "[" * 30_000,
        "{" + ",".join(f'"k{i}":1' for i in range(5_000)) + "}",
        encode(hello()),
    ],
    ids=range(16),
)
async def test_c_135_what_is_malformed_ends_that_session_and_no_other(text: str) -> None:
    other = Identity("ns/job", "w1", "life-1")
    async with serving() as wire, wire.worker() as bad, wire.worker(other, "token-2") as good:
        await bad.send_str(text)
        assert await close_code(bad) == aiohttp.WSCloseCode.INVALID_TEXT
        assert wire.server.counters["malformed"] == 1
        await wire.log.until(lambda log: ("closed", W0, None) in log.events)
        assert not any(kind == "received" for kind, _, _ in wire.log.events)
        wire.server.send(other, plan(1))
        assert await read(good) == plan(1)


async def test_c_135_a_diverged_loss_is_no_number_and_no_error() -> None:
    async with serving() as wire, wire.worker() as socket:
        await socket.send_str(STEPS % (STEP % "null").replace("}", ', "diverged": true}'))
        await wire.log.until(lambda log: "received" in log.kinds())


async def test_c_200_what_is_not_text_is_not_read() -> None:
    async with serving() as wire, wire.worker() as socket:
        await socket.send_bytes(b"\x80\x04\x95")
        assert await close_code(socket) == aiohttp.WSCloseCode.INVALID_TEXT


async def test_c_203_a_message_that_is_too_long() -> None:
    async with serving() as wire, wire.worker() as socket:
        await socket.send_str(" " * (MAX_MESSAGE_BYTES + 1))
        assert await close_code(socket) == aiohttp.WSCloseCode.MESSAGE_TOO_BIG
        await wire.log.until(lambda log: "closed" in log.kinds())
        assert wire.server.counters["malformed"] == 1


async def test_c_203_compression_is_not_agreed_to() -> None:
    async with serving() as wire, wire.worker(compress=15) as socket:
        assert socket.compress == 0
        await socket.send_str(encode(Ready()), compress=15)
        await wire.log.until(lambda log: "closed" in log.kinds())
        assert "received" not in wire.log.kinds()


async def test_c_203_a_compressed_body_is_not_expanded() -> None:
    bomb = gzip.compress(bytes(20_000_000))
    async with serving() as wire:
        headers = {"Authorization": "Bearer x", "Content-Encoding": "gzip"}
        async with wire.client.get(wire.url, data=bomb, headers=headers) as answer:
            assert answer.status == 400
        assert wire.server.counters["refused-not-websocket"] == 1


async def test_c_203_an_endless_body_is_cut_off() -> None:
    async def endless() -> object:
        while True:
            yield bytes(65_536)

    async with serving() as wire:
        with pytest.raises((aiohttp.ClientError, ConnectionError)):
            async with wire.client.get(wire.url, data=endless(), headers={"Authorization": "Bearer x"}) as answer:
                assert answer.status == 400
                raise ConnectionError


async def test_c_203_one_that_never_says_hello_loses_its_place() -> None:
    async with serving(hello_timeout_s=0.1) as wire, wire.socket() as socket:
        assert await close_code(socket) == aiohttp.WSCloseCode.POLICY_VIOLATION


async def test_c_203_one_that_trickles_its_request_is_cut_off() -> None:
    async with serving(hello_timeout_s=0.1) as wire:
        reader, writer = await asyncio.open_connection("localhost", wire.port)
        writer.write(b"GET /v1/channel HTTP/1.1\r\nHost:")
        await writer.drain()
        assert await _rest(reader) == b""
        assert wire.server.counters["slow-request"] == 1
        writer.close()


async def test_c_203_connections_are_bounded() -> None:
    async with serving(max_connections=1) as wire, wire.worker():
        reader, writer = await asyncio.open_connection("localhost", wire.port)
        assert await _rest(reader) == b""
        assert wire.server.counters["refused-connection"] == 1
        writer.close()


async def test_the_unproven_are_bounded() -> None:
    async with serving(max_unproven=1) as wire, wire.socket() as first:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            async with wire.socket():
                pass
        assert caught.value.status == 503
        assert not first.closed


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""
