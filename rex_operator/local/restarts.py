"""What follows when a worker of this machine ends: nothing, a replacement and when, or the end of the job."""

from __future__ import annotations

from dataclasses import dataclass

from rex_operator.api.spec import Failure
from rex_operator.jobs import WorkerState, judge, restart_delay

PLANNED: frozenset[WorkerState] = frozenset({"leaving", "drained", "stopped"})
"""Standings of a worker that went because it was asked to, not because it failed."""


@dataclass(frozen=True)
class Next:
    """What to do. ``fail`` is the reason to end the job, empty to replace the worker after ``delay_s`` seconds."""

    fail: str
    message: str
    delay_s: float = 0.0


class Restarts:
    """The budget of a run, over all of its parts."""

    def __init__(self, failure: Failure, workers: int, charged: int, uncharged: int) -> None:
        self._failure, self._workers = failure, workers
        self.charged, self.uncharged = charged, uncharged
        self._in_a_row, self._step = 0, -1

    def after(self, worker_id: str, state: WorkerState, code: int, *, connected: bool, error: str, step: int) -> Next:
        """Judge the end of a worker in standing ``state`` with exit ``code``; the group was at ``step``."""
        if code == 0 and not connected:
            return Next("NeverCalledRex", f"{worker_id} ran the script to its end without ever calling rex.init()")
        what = f"{worker_id} ended" + (f" ({error})" if error else "")
        verdict = judge(self._failure, self.charged, code, ["Terminated"] if state in PLANNED else [])
        message = f"{what}: {verdict.message}"
        if verdict.fail:
            return Next(verdict.reason, message)
        self.charged += verdict.charged
        self.uncharged += not verdict.charged
        return Next("", message, self.delay(step))

    def delay(self, step: int) -> float:
        """Seconds to wait before a replacement; grows while workers end and no step is made."""
        self._in_a_row = self._in_a_row + 1 if step <= self._step else 1
        self._step = max(step, self._step)
        return restart_delay(-(-self._in_a_row // self._workers))
