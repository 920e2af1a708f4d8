"""How long after a failed trial may the same be tried again?

A noisy measurement proposes the batch that has just been rolled back, again and again. Each roll-back doubles the pause
of its direction, an accepted trial in the direction ends it. So does a worker that changed its speed since: another
batch may be the best one now.
"""

from __future__ import annotations

from typing import Literal

from rex_operator.planning.types import Record

Direction = Literal["larger", "smaller", "passes"]

LONGEST = 64
"""A pause grows to at most this many times the spec's cooldown."""
MATERIAL = 1.10
"""A worker whose speed changed by this factor may make another batch the best."""


class PauseState(Record):
    """What is kept of one direction; times are job time in seconds."""

    failures: int = 0
    until: float = 0.0


def direction(before: tuple[int, int], after: tuple[int, int]) -> Direction:
    """Return which way a change from one (batch, accumulation) to another goes."""
    if after[0] == before[0]:
        return "passes"
    return "larger" if after[0] > before[0] else "smaller"


class Cooldown:
    """Pauses per direction, and one after any trial."""

    def __init__(self, seconds: float, saved: dict[Direction, PauseState] | None = None) -> None:
        self._seconds = seconds
        self._pauses: dict[Direction, PauseState] = dict(saved or {})
        self._any = 0.0

    def failed(self, way: Direction, at: float) -> float:
        """Note that a trial that way was not kept; return the seconds of its pause."""
        failures = self._pauses.get(way, PauseState()).failures + 1
        pause = self._seconds * min(2.0 ** (failures - 1), LONGEST)
        self._pauses[way] = PauseState(failures=failures, until=at + pause)
        self._any = at + self._seconds
        return pause

    def accepted(self, way: Direction) -> None:
        """Note that a trial that way was kept: more of the same may follow at once."""
        self._pauses.pop(way, None)

    def wait(self, at: float) -> None:
        """Note that there was nothing to try now."""
        self._any = at + max(self._seconds, 1.0)

    def blocked(self, at: float) -> bool:
        """Return whether any direction is paused."""
        return any(at < pause.until for pause in self._pauses.values())

    def quiet(self, at: float) -> bool:
        """Return whether any trial may start."""
        return at >= self._any

    def open(self, way: Direction, at: float) -> bool:
        """Return whether a trial that way may start."""
        return at >= self._pauses.get(way, PauseState()).until

    def lift(self) -> None:
        """End all pauses: what failed trials have shown holds no longer. The next failure pauses for longer still."""
        self._pauses = {way: PauseState(failures=pause.failures) for way, pause in self._pauses.items()}
        self._any = 0.0

    def clear(self) -> None:
        """Forget all: the team changed, and old failures say nothing about the new one."""
        self._pauses.clear()

    def state(self) -> dict[Direction, PauseState]:
        """Return what is to be kept."""
        return dict(self._pauses)
