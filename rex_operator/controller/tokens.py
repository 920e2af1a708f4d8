"""Whom a service-account token was made for: asked of the API server, or read from its signature.

TokenReview is the right way, and needs a cluster-wide right. Where an operator has rights in namespaces only, it checks
the token itself: the API server publishes its signing keys to every service account, the token says audience, end of
life, pod and UID, and that the pod still exists is known from our own watch.
"""

from __future__ import annotations

import base64
import json
import logging
import time
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from rex_operator.channel import Refused
from rex_operator.controller.kube import TOKEN_REVIEWS, Kube, KubeError, Object
from rex_operator.controller.template import AUDIENCE

logger = logging.getLogger(__name__)

KEYS_PATH = "/openid/v1/jwks"
KEYS_GOOD_FOR_S = 300.0
_EXTRA = "authentication.kubernetes.io/"


@dataclass(frozen=True)
class Bearer:
    """Whom a token was made for."""

    namespace: str
    pod: str
    uid: str


class TokenChecker:
    """Checks tokens, by review as long as that is allowed."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._may_review = True
        self._keys: dict[str, Object] = {}
        self._keys_until = float("-inf")

    async def check(self, token: str) -> Bearer:
        """The bearer. Raises ``Refused``."""
        try:
            if self._may_review:
                return await self._review(token)
            return await self._verify(token)
        except KubeError as error:
            raise Refused(f"the token could not be checked: {error.reason or error.status}") from None

    async def _review(self, token: str) -> Bearer:
        spec = {"token": token, "audiences": [AUDIENCE]}
        body = {"apiVersion": TOKEN_REVIEWS.api_version, "kind": "TokenReview", "spec": spec}
        try:
            answer = await self._kube.create(TOKEN_REVIEWS, None, body)
        except KubeError as error:
            if error.status != 403:
                raise
            logger.warning("TokenReview is not allowed: tokens are checked against the published signing keys")
            self._may_review = False
            return await self._verify(token)
        return reviewed(answer.get("status", {}))

    async def _verify(self, token: str) -> Bearer:
        now = time.monotonic()
        if now >= self._keys_until:
            published = await self._kube.request("GET", KEYS_PATH)
            self._keys = {key.get("kid", ""): key for key in published.get("keys", [])[:64]}
            self._keys_until = now + KEYS_GOOD_FOR_S
        return verified(token, self._keys, time.time())


def reviewed(status: Object) -> Bearer:
    """Read the answer of a TokenReview. Raises ``Refused``."""
    if not status.get("authenticated") or AUDIENCE not in status.get("audiences", []):
        raise Refused("the token is not valid for this channel")
    user = status.get("user", {})
    prefix, _, account = str(user.get("username", "")).partition("system:serviceaccount:")
    extra = user.get("extra", {})
    pod, uid = extra.get(f"{_EXTRA}pod-name", []), extra.get(f"{_EXTRA}pod-uid", [])
    if prefix or ":" not in account or len(pod) != 1 or len(uid) != 1:
        raise Refused("the token is not bound to a pod")
    return Bearer(account.partition(":")[0], str(pod[0]), str(uid[0]))


def verified(token: str, keys: dict[str, Object], now: float) -> Bearer:
    """Check signature, audience and end of life of a token at time ``now`` (seconds since 1970). Raises ``Refused``."""
    try:
        head, body, signature = token.split(".")
        header, claims = json.loads(_decode(head)), json.loads(_decode(body))
        key = keys[header["kid"]]
        _check_signature(header["alg"], key, f"{head}.{body}".encode(), _decode(signature))
        audiences = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        if AUDIENCE not in audiences or now >= claims["exp"] or now < claims.get("nbf", 0) - 60:
            raise Refused("the token is not valid for this channel")
        bound = claims["kubernetes.io"]
        return Bearer(str(bound["namespace"]), str(bound["pod"]["name"]), str(bound["pod"]["uid"]))
    except (ValueError, KeyError, TypeError, AttributeError, InvalidSignature):
        raise Refused("the token is not valid for this channel") from None


def _check_signature(algorithm: str, key: Object, data: bytes, signature: bytes) -> None:
    if algorithm == "RS256" and key.get("kty") == "RSA":
        public = rsa.RSAPublicNumbers(_number(key["e"]), _number(key["n"])).public_key()
        public.verify(signature, data, padding.PKCS1v15(), hashes.SHA256())
    elif algorithm == "ES256" and key.get("kty") == "EC" and key.get("crv") == "P-256" and len(signature) == 64:
        numbers = ec.EllipticCurvePublicNumbers(_number(key["x"]), _number(key["y"]), ec.SECP256R1())
        pair = encode_dss_signature(int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big"))
        numbers.public_key().verify(pair, data, ec.ECDSA(hashes.SHA256()))
    else:
        raise ValueError(f"signatures of kind {algorithm!r} are not accepted")


def _decode(text: Any) -> bytes:
    return base64.urlsafe_b64decode(str(text) + "=" * (-len(str(text)) % 4))


def _number(text: Any) -> int:
    return int.from_bytes(_decode(text), "big")
