"""The time limits of a run: to form a group, to end, and to stop for now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rex_operator.api import RexJobSpec
from rex_operator.jobs import JobView

HINT_AFTER_S = 60.0
"""When a worker that has not connected is worth a word."""


@dataclass(frozen=True)
class Late:
    """A limit that is over. ``silent`` is a worker whose log may tell why."""

    what: Literal["hint", "pending", "active", "max"]
    message: str
    silent: str = ""


class Deadlines:
    """Watches the clock of one part of a run; each limit is told once."""

    def __init__(self, spec: RexJobSpec, max_seconds: float | None) -> None:
        self._spec, self._max_seconds = spec, max_seconds
        self._told: set[str] = set()
        self._grouped = False

    def check(self, view: JobView, silent: Sequence[str], here_s: float, total_s: float) -> Late | None:
        """Return the limit that has just passed.

        ``silent`` are the workers that never connected; ``here_s`` are the seconds of this part, ``total_s`` of the
        whole run.
        """
        self._grouped = self._grouped or view.phase == "Running"
        late = self._late(view, silent, here_s, total_s)
        if late is None or late.what in self._told:
            return None
        self._told.add(late.what)
        return late

    def _late(self, view: JobView, silent: Sequence[str], here_s: float, total_s: float) -> Late | None:
        active, pending = self._spec.active_deadline_seconds, self._spec.pending_deadline_seconds
        if active is not None and total_s > active:
            return Late("active", f"the job took longer than activeDeadlineSeconds ({active})")
        if self._max_seconds is not None and here_s > self._max_seconds:
            return Late("max", f"{self._max_seconds:g} s (--max-seconds) are over")
        if self._grouped:
            return None
        if here_s > pending:
            bound = f"no group of workers within pendingDeadlineSeconds ({pending})"
            if silent:
                return Late("pending", f"{bound}: the script never called rex.init() on {silent[0]}", silent[0])
            states = ", ".join(f"{row.worker_id} is {row.state}" for row in view.workers)
            return Late("pending", f"{bound}: {states}")
        if here_s > HINT_AFTER_S and silent:
            names = ", ".join(silent)
            return Late("hint", f"{names} not connected after {here_s:.0f} s; does the script call rex.init()?")
        return None
