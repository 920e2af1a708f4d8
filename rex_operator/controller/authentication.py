"""Who a worker is: its pod's own token, checked by the API server.

The token is a projected service-account token with REX's audience, and names the pod that it was made for. So a token
speaks for exactly one life of one worker, even among workers that share a service account, and is worth nothing once
its pod is gone. Good answers are remembered for a short while, by digest.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable

from rex_operator.channel import Identity, Refused
from rex_operator.controller.kube import Kube, Object
from rex_operator.controller.names import JOB_LABEL, UID_LABEL, WORKER_LABEL, controller_uid
from rex_operator.controller.pods import devices_of
from rex_operator.controller.runtime import Runtimes
from rex_operator.controller.tokens import Bearer, TokenChecker
from rex_worker.pod import read_life, worker_names
from rex_worker.protocol import Hello

CACHE_S = 60.0
CACHE_SIZE = 4096
WAIT_S = 10.0


class TokenAuthenticator:
    """Checks workers for the channel server."""

    def __init__(self, kube: Kube, find_pod: Callable[[str, str], Object | None], runtimes: Runtimes) -> None:
        self._tokens, self._find_pod, self._runtimes = TokenChecker(kube), find_pod, runtimes
        self._cache: OrderedDict[bytes, tuple[float, Bearer]] = OrderedDict()

    async def __call__(self, token: str, hello: Hello) -> Identity:
        """The proven identity. Raises ``Refused`` with what did not agree, never with the token."""
        bearer = await self._bearer(token)
        namespace, _, name = hello.job.partition("/")
        life = read_life(hello.incarnation)
        if bearer.namespace != namespace or bearer.uid != life.uid:
            raise Refused("the token belongs to another pod")
        pod = self._find_pod(bearer.namespace, bearer.pod)
        if pod is None or pod["metadata"]["uid"] != bearer.uid:
            raise Refused("the pod of this token is not a worker, or is gone")
        labels = pod["metadata"].get("labels", {})
        owner = controller_uid(pod)
        agrees = (
            labels.get(JOB_LABEL) == name
            and str(life) == hello.incarnation
            and (hello.worker_id, life.device) in _workers(pod)
            and owner is not None
            and labels.get(UID_LABEL) == owner
        )
        if not agrees:
            raise Refused("the pod is another worker, or of another job")
        if not await self._runtimes.wait_for(hello.job, str(owner), WAIT_S):
            raise Refused("the job is not run here (yet); try again")
        return Identity(hello.job, hello.worker_id, hello.incarnation)

    async def _bearer(self, token: str) -> Bearer:
        now = asyncio.get_running_loop().time()
        digest = hashlib.sha256(token.encode()).digest()
        known = self._cache.get(digest)
        if known is not None and now < known[0]:
            return known[1]
        bearer = await self._tokens.check(token)
        self._cache[digest] = (now + CACHE_S, bearer)
        while len(self._cache) > CACHE_SIZE:
            self._cache.popitem(last=False)
        return bearer


def _workers(pod: Object) -> set[tuple[str, int | None]]:
    """The workers that a pod's token speaks for, each with its device; None where the pod has only one."""
    devices = devices_of(pod)
    names = worker_names(pod["metadata"].get("labels", {}).get(WORKER_LABEL, ""), devices)
    return {(name, device if devices > 1 else None) for device, name in enumerate(names)}
