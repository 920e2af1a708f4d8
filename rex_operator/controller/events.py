"""Events on RexJobs, so that ``kubectl describe`` tells the story; the same thing is not told twice in a short while.

A job that fails again and again, or a tenant that edits in a loop, must not fill the cluster's store with events: equal
ones are told once per some minutes, and each job has a small budget that refills with time.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from rex_operator.api import API_VERSION, KIND
from rex_operator.controller.kube import EVENTS, Kube, KubeError
from rex_operator.controller.names import MANAGER, Owner

logger = logging.getLogger(__name__)

REPEAT_S = 300.0
BURST = 25
PER_SECOND = 0.1
MAX_NOTE = 1024
_REMEMBERED = 8192


@dataclass
class _Budget:
    left: float
    at: float


class Recorder:
    """Posts events in the background; a failure to post is logged and costs nothing else."""

    def __init__(self, kube: Kube, identity: str) -> None:
        self._kube, self._identity = kube, identity
        self._told: OrderedDict[tuple[str, str, str], float] = OrderedDict()
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()
        self._posting: set[asyncio.Task[None]] = set()

    def tell(self, owner: Owner, kind: Literal["Normal", "Warning"], reason: str, note: str) -> None:
        """Say once that this happened to the job."""
        loop = asyncio.get_running_loop()
        key, now = (owner.uid, reason, note), loop.time()
        if now - self._told.get(key, -REPEAT_S) < REPEAT_S or not self._afford(owner.uid, now):
            return
        self._told[key] = now
        self._told.move_to_end(key)
        while len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        task = loop.create_task(self._post(owner, kind, reason, note))
        self._posting.add(task)
        task.add_done_callback(self._posting.discard)

    async def flush(self) -> None:
        """Wait until what was told is posted."""
        await asyncio.gather(*self._posting, return_exceptions=True)

    def _afford(self, uid: str, now: float) -> bool:
        budget = self._budgets.setdefault(uid, _Budget(BURST, now))
        self._budgets.move_to_end(uid)
        while len(self._budgets) > _REMEMBERED:
            self._budgets.popitem(last=False)
        budget.left = min(BURST, budget.left + (now - budget.at) * PER_SECOND)
        budget.at = now
        if budget.left < 1:
            return False
        budget.left -= 1
        return True

    async def _post(self, owner: Owner, kind: str, reason: str, note: str) -> None:
        body = {
            "apiVersion": EVENTS.api_version,
            "kind": "Event",
            "metadata": {"name": f"{owner.name}.{uuid.uuid4().hex[:16]}", "namespace": owner.namespace},
            "eventTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "reportingController": f"rex.dev/{MANAGER}",
            "reportingInstance": self._identity[:128],
            "action": "Reconcile",
            "type": kind,
            "reason": reason[:128],
            "note": note[:MAX_NOTE],
            "regarding": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "namespace": owner.namespace,
                "name": owner.name,
                "uid": owner.uid,
            },
        }
        try:
            await self._kube.create(EVENTS, owner.namespace, body)
        except KubeError as error:
            logger.info("Event %s of RexJob %s was not posted: %s", reason, owner, error)
