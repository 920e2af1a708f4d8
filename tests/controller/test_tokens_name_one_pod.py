"""A token speaks for the pod that it was made for, and for nobody when anything about it is off."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from rex_operator.channel import Refused
from rex_operator.controller.tokens import Bearer, reviewed, verified

NOW = 1_700_000_000.0
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value: int) -> str:
    return b64(value.to_bytes((value.bit_length() + 7) // 8, "big"))


KEYS: dict[str, dict[str, Any]] = {
    "r": {"kty": "RSA", "n": number(RSA.public_key().public_numbers().n), "e": number(65537)},
    "e": {
        "kty": "EC",
        "crv": "P-256",
        "x": number(EC.public_key().public_numbers().x),
        "y": number(EC.public_key().public_numbers().y),
    },
}


UNBOUND: dict[str, Any] = {"kubernetes.io": {"namespace": "team"}}


def token(algorithm: str = "RS256", kid: str = "r", **changes: Any) -> str:
    claims = {
        "aud": ["rex.dev"],
        "exp": NOW + 600,
        "nbf": NOW - 1,
        "kubernetes.io": {"namespace": "team", "pod": {"name": "digits-w0-0", "uid": "u-1"}},
        **changes,
    }
    data = f"{b64(json.dumps({'alg': algorithm, 'kid': kid}).encode())}.{b64(json.dumps(claims).encode())}"
    if algorithm == "ES256":
        r, s = decode_dss_signature(EC.sign(data.encode(), ec.ECDSA(hashes.SHA256())))
        signature = r.to_bytes(32, "big") + s.to_bytes(32, "big")
    else:
        signature = RSA.sign(data.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{data}.{b64(signature)}"


@pytest.mark.parametrize(("algorithm", "kid"), [("RS256", "r"), ("ES256", "e")])
def test_a_good_token_names_its_pod(algorithm: str, kid: str) -> None:
    assert verified(token(algorithm, kid), KEYS, NOW) == Bearer("team", "digits-w0-0", "u-1")


@pytest.mark.parametrize(
    "bad",
    [
        token(aud=["https://kubernetes.default.svc"]),
        token(exp=NOW),
        token(nbf=NOW + 3600),
        token(kid="unknown"),
        token(algorithm="none"),
        token(algorithm="HS256"),
        token(algorithm="ES256", kid="r"),
        token(**UNBOUND),
        token()[:-4] + "AAAA",
        token().replace(".", ".e30", 1),
        "", "a.b.c", "....", "not a token",
    ],
)  # fmt: skip
def test_c_201_anything_else_is_nobody(bad: str) -> None:
    with pytest.raises(Refused, match="not valid for this channel"):
        verified(bad, KEYS, NOW)


def review(**changes: Any) -> dict[str, Any]:
    extra = {
        "authentication.kubernetes.io/pod-name": ["digits-w0-0"],
        "authentication.kubernetes.io/pod-uid": ["u-1"],
    }
    user = {"username": "system:serviceaccount:team:default", "extra": extra}
    return {"authenticated": True, "audiences": ["rex.dev"], "user": user, **changes}


def test_a_review_names_the_pod() -> None:
    assert reviewed(review()) == Bearer("team", "digits-w0-0", "u-1")


@pytest.mark.parametrize(
    "bad",
    [
        {},
        review(authenticated=False),
        review(audiences=["https://kubernetes.default.svc"]),
        review(user={"username": "system:serviceaccount:team:default", "extra": {}}),
        review(user={"username": "kubernetes-admin", "extra": review()["user"]["extra"]}),
    ],
)
def test_c_201_a_review_that_names_no_pod_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        reviewed(bad)
