"""Who a worker is: its pod's own token, checked by the API server.

The token is a projected service-account token with REX's audience. TokenReview says whose it is, including the name and
UID of the pod that it was made for; so a token speaks for exactly one life of one worker, even among workers that share
a service account, and is worth nothing once its pod is gone. Good answers are remembered for a short while, by digest.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from rex_operator.channel import Identity, Refused
from rex_operator.controller.kube import TOKEN_REVIEWS, Kube, KubeError, Object
from rex_operator.controller.names import JOB_LABEL, UID_LABEL, WORKER_LABEL, controller_uid
from rex_operator.controller.runtime import Runtimes
from rex_operator.controller.template import AUDIENCE
from rex_worker.protocol import Hello

CACHE_S = 60.0
CACHE_SIZE = 4096
WAIT_S = 10.0
_EXTRA = "authentication.kubernetes.io/"


@dataclass(frozen=True)
class Bearer:
    """Whom a token was made for."""

    namespace: str
    pod: str
    uid: str


class TokenAuthenticator:
    """Checks workers for the channel server."""

    def __init__(self, kube: Kube, find_pod: Callable[[str, str], Object | None], runtimes: Runtimes) -> None:
        self._kube, self._find_pod, self._runtimes = kube, find_pod, runtimes
        self._cache: OrderedDict[bytes, tuple[float, Bearer]] = OrderedDict()

    async def __call__(self, token: str, hello: Hello) -> Identity:
        """The proven identity. Raises ``Refused`` with what did not agree, never with the token."""
        bearer = await self._review(token)
        namespace, _, name = hello.job.partition("/")
        if bearer.namespace != namespace or bearer.uid != hello.incarnation:
            raise Refused("the token belongs to another pod")
        pod = self._find_pod(bearer.namespace, bearer.pod)
        if pod is None or pod["metadata"]["uid"] != bearer.uid:
            raise Refused("the pod of this token is not a worker, or is gone")
        labels = pod["metadata"].get("labels", {})
        owner = controller_uid(pod)
        agrees = (
            labels.get(JOB_LABEL) == name
            and labels.get(WORKER_LABEL) == hello.worker_id
            and owner is not None
            and labels.get(UID_LABEL) == owner
        )
        if not agrees:
            raise Refused("the pod is another worker, or of another job")
        if not await self._runtimes.wait_for(hello.job, str(owner), WAIT_S):
            raise Refused("the job is not run here (yet); try again")
        return Identity(hello.job, hello.worker_id, hello.incarnation)

    async def _review(self, token: str) -> Bearer:
        now = asyncio.get_running_loop().time()
        digest = hashlib.sha256(token.encode()).digest()
        known = self._cache.get(digest)
        if known is not None and now < known[0]:
            return known[1]
        body = {
            "apiVersion": TOKEN_REVIEWS.api_version,
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [AUDIENCE]},
        }
        try:
            answer = await self._kube.create(TOKEN_REVIEWS, None, body)
        except KubeError as error:
            raise Refused(f"the token could not be checked: {error.reason or error.status}") from None
        bearer = _bearer(answer.get("status", {}))
        self._cache[digest] = (now + CACHE_S, bearer)
        while len(self._cache) > CACHE_SIZE:
            self._cache.popitem(last=False)
        return bearer


def _bearer(status: Object) -> Bearer:
    if not status.get("authenticated") or AUDIENCE not in status.get("audiences", []):
        raise Refused("the token is not valid for this channel")
    user = status.get("user", {})
    prefix, _, account = str(user.get("username", "")).partition("system:serviceaccount:")
    extra = user.get("extra", {})
    pod = extra.get(f"{_EXTRA}pod-name", [])
    uid = extra.get(f"{_EXTRA}pod-uid", [])
    if prefix or ":" not in account or len(pod) != 1 or len(uid) != 1:
        raise Refused("the token is not bound to a pod")
    return Bearer(account.partition(":")[0], str(pod[0]), str(uid[0]))
