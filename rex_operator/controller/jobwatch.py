"""kopf watches RexJobs, and does nothing but say which one changed.

Only ``on.event`` is used: it needs no finalizer and writes no annotation, so a job can be deleted while no operator
runs. kopf runs in a thread and loop of its own, because on exit it ends every task that it finds in its loop. When it
ends by itself (credentials refused, a broken watch), the operator ends: a process that watches nothing is of no use.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import kopf

from rex_operator.api import GROUP, PLURAL, VERSION
from rex_operator.controller.kube import Kube
from rex_operator.controller.queue import Key

logger = logging.getLogger(__name__)

EXIT_S = 10.0
_IDENTITY: Any = "rex-operator"
"""Given so that kopf does not ask for the name of the user: an arbitrary numeric one has none."""


class JobWatch:
    """Watches RexJobs in some namespaces or (none given) in all."""

    def __init__(self, kube: Kube, namespaces: Sequence[str], changed: Callable[[Key], None]) -> None:
        self._kube, self._namespaces, self._changed = kube, list(namespaces), changed
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._stop: Callable[[], object] = lambda: None

    async def run(self) -> None:
        """Watch until cancelled. Raises ``RuntimeError`` when kopf gives up."""
        thread = threading.Thread(target=lambda: asyncio.run(self._watch()), name="kopf", daemon=True)
        thread.start()
        try:
            await self._ended
        finally:
            self._stop()
            await asyncio.to_thread(thread.join, EXIT_S)

    async def _watch(self) -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        # A flag of the loop itself: on a flag of threads kopf would wait in a thread that then never ends.
        self._stop = lambda: loop.call_soon_threadsafe(stop.set)
        error: BaseException | None = None
        try:
            await kopf.operator(
                identity=_IDENTITY,
                registry=self._registry(),
                settings=_settings(scan=not self._namespaces),
                namespaces=self._namespaces,
                clusterwide=not self._namespaces,
                standalone=True,
                stop_flag=stop,
            )
        except BaseException as caught:  # whatever it is, the other thread must know
            error = caught
        finally:
            self._stop = lambda: None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._report, error)

    def _report(self, error: BaseException | None) -> None:
        if not self._ended.done():
            self._ended.set_exception(RuntimeError(f"the watch of RexJobs ended: {error!r}"))

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        loop, changed, kube = self._loop, self._changed, self._kube

        @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
        async def enqueue(name: str | None, namespace: str | None, **_: Any) -> None:
            if name and namespace:
                loop.call_soon_threadsafe(changed, Key(namespace, name))

        @kopf.on.login(registry=registry, retries=3)
        async def log_in(**_: Any) -> kopf.ConnectionInfo:
            # Our own connection renews its token by itself; kopf asks again when its copy is refused.
            return kopf.ConnectionInfo(**kube.credentials())

        return registry


def _settings(*, scan: bool) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = not scan
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 30
    settings.watching.server_timeout = 600
    settings.process.ultimate_exiting_timeout = None  # it would kill the whole process, in the middle of its own exit
    settings.persistence.finalizer = "rex.dev/unused"
    return settings
