"""The channel over TLS: with the right authority it works, without it nothing is said."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.channel.wire import W0, plan, read, serving


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A file with a key and a self-signed certificate for localhost."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path / "server.pem"
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    return file


async def test_works_over_tls_with_the_right_authority(certificate: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    async with serving(context) as wire:
        wire.scheme, wire.ssl = "https", ssl.create_default_context(cafile=str(certificate))
        async with wire.worker() as socket:
            wire.server.send(W0, plan(1))
            assert await read(socket) == plan(1)


async def test_a_worker_that_does_not_know_the_authority_says_nothing(certificate: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    async with serving(context) as wire:
        wire.scheme = "https"
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            async with wire.socket():
                pass
        assert wire.log.events == []
