"""The channel's certificates: made by the operator itself, so that nothing else need be installed.

One Secret in the operator's namespace holds a small CA and a serving certificate. Workers trust the CA, whose
certificate (never its key) is copied into a ConfigMap per job. The serving certificate is made anew long before it ends
or when the names change; the CA lives for years, because every running pod would have to learn a new one.
"""

from __future__ import annotations

import base64
import ipaddress
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rex_operator.controller.kube import SECRETS, Kube, KubeError, Object

CA_DAYS = 3650
SERVING_DAYS = 90
RENEW_BEFORE = timedelta(days=30)


@dataclass(frozen=True)
class Certificates:
    """PEM texts. The two keys are secret."""

    ca: str
    ca_key: str
    serving: str
    serving_key: str

    def ssl_context(self) -> ssl.SSLContext:
        """What the channel server listens with."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.load_into(context)
        return context

    def load_into(self, context: ssl.SSLContext) -> None:
        """Have new connections of a server that runs already be served with this certificate."""
        with tempfile.TemporaryDirectory() as folder:  # the library reads files only; this one is gone at once
            chain, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
            chain.write_text(self.serving)
            key.touch(mode=0o600)
            key.write_text(self.serving_key)
            context.load_cert_chain(chain, key)


async def ensure_certificates(kube: Kube, namespace: str, name: str, hosts: Sequence[str]) -> Certificates:
    """Read the Secret, make or renew what is missing, and return what holds. Raises ``KubeError``."""
    now = datetime.now(UTC)
    secret = await kube.get(SECRETS, namespace, name)
    held = _read(secret) if secret is not None else None
    current = renew(held, hosts, now)
    if current == held:
        return current
    data = {"ca.crt": current.ca, "ca.key": current.ca_key, "tls.crt": current.serving, "tls.key": current.serving_key}
    body: Object = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/managed-by": "rex-operator"}},
        "data": {key: base64.b64encode(text.encode()).decode() for key, text in data.items()},
    }
    if secret is None:
        try:
            await kube.create(SECRETS, namespace, body)
        except KubeError as error:
            if error.status != 409:
                raise
            return await ensure_certificates(kube, namespace, name, hosts)
    else:
        await kube.merge(SECRETS, namespace, name, {"data": body["data"]})
    return current


def renew(held: Certificates | None, hosts: Sequence[str], now: datetime) -> Certificates:
    """The certificates that should hold now: those given if they are good for a while and for ``hosts``. Pure."""
    if held is not None and _good(held.ca, now) and _good(held.serving, now, hosts) and _signed(held):
        return held
    if held is not None and _good(held.ca, now):
        ca, ca_key = held.ca, held.ca_key
    else:
        ca, ca_key = _make_ca(now)
    serving, serving_key = _make_serving(ca, ca_key, hosts, now)
    return Certificates(ca, ca_key, serving, serving_key)


def _make_ca(now: datetime) -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "REX channel CA")])
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    certificate = (
        _builder(name, name, key.public_key(), now, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pem(certificate), _key_pem(key)


def _make_serving(ca: str, ca_key: str, hosts: Sequence[str], now: datetime) -> tuple[str, str]:
    issuer = x509.load_pem_x509_certificate(ca.encode())
    signer = serialization.load_pem_private_key(ca_key.encode(), None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ValueError(
            "the CA key in the Secret is not an elliptic-curve key; delete the Secret to have it made anew"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "REX channel")])
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    certificate = (
        _builder(subject, issuer.subject, key.public_key(), now, SERVING_DAYS)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return _pem(certificate), _key_pem(key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks of nodes differ
        .not_valid_after(now + timedelta(days=days))
    )


def _good(pem: str, now: datetime, hosts: Sequence[str] = ()) -> bool:
    certificate = x509.load_pem_x509_certificate(pem.encode())
    if certificate.not_valid_after_utc - now < RENEW_BEFORE:
        return False
    if not hosts:
        return True
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return set(names) == {_general_name(host) for host in hosts}


def _signed(held: Certificates) -> bool:
    serving = x509.load_pem_x509_certificate(held.serving.encode())
    try:
        serving.verify_directly_issued_by(x509.load_pem_x509_certificate(held.ca.encode()))
    except Exception:  # an invalid signature raises one of many kinds
        return False
    return True


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _read(secret: Object) -> Certificates | None:
    data = {key: base64.b64decode(text).decode() for key, text in (secret.get("data") or {}).items()}
    if not {"ca.crt", "ca.key", "tls.crt", "tls.key"} <= data.keys():
        return None
    return Certificates(data["ca.crt"], data["ca.key"], data["tls.crt"], data["tls.key"])
