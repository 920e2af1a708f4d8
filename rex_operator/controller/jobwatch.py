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
from rex_operator.controller.queue import Key

logger = logging.getLogger(__name__)

EXIT_S = 10.0
_IDENTITY: Any = "rex-operator"
"""Given so that kopf does not ask for the name of the user: an arbitrary numeric one has none."""


class JobWatch:
    """Watches RexJobs in some namespaces or (none given) in all; ``seen_at`` is the loop time of the last event."""

    def __init__(self, namespaces: Sequence[str], changed: Callable[[Key], None], kubeconfig: str | None) -> None:
        self._namespaces, self._changed, self._kubeconfig = list(namespaces), changed, kubeconfig
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._ready = threading.Event()

    async def run(self) -> None:
        """Watch until cancelled. Raises ``RuntimeError`` when kopf gives up."""
        ended = self._loop.create_future()

        def report(error: BaseException | None) -> None:
            if not ended.done():
                ended.set_exception(RuntimeError(f"the watch of RexJobs ended: {error!r}"))

        thread = threading.Thread(target=self._work, args=(report,), name="kopf", daemon=True)
        thread.start()
        try:
            await ended
        finally:
            self._stop.set()
            await asyncio.to_thread(thread.join, EXIT_S)

    def _work(self, report: Callable[[BaseException | None], None]) -> None:
        error: BaseException | None = None
        try:
            asyncio.run(
                kopf.operator(
                    identity=_IDENTITY,
                    registry=self._registry(),
                    settings=_settings(scan=not self._namespaces),
                    namespaces=self._namespaces,
                    clusterwide=not self._namespaces,
                    standalone=True,
                    stop_flag=self._stop,
                    ready_flag=self._ready,
                )
            )
        except BaseException as caught:  # whatever it is, the other thread must know
            error = caught
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(report, error)

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        loop, changed, kubeconfig = self._loop, self._changed, self._kubeconfig

        @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
        async def enqueue(name: str | None, namespace: str | None, **_: Any) -> None:
            if name and namespace:
                loop.call_soon_threadsafe(changed, Key(namespace, name))

        @kopf.on.login(registry=registry, retries=3)
        def log_in(**kwargs: Any) -> kopf.ConnectionInfo | None:
            if kubeconfig is None and (account := kopf.login_with_service_account(**kwargs)):
                return account
            return kopf.login_with_kubeconfig(**kwargs)

        return registry


def _settings(*, scan: bool) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = not scan
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 30
    settings.watching.server_timeout = 600
    settings.process.ultimate_exiting_timeout = EXIT_S
    settings.persistence.finalizer = "rex.dev/unused"
    return settings
