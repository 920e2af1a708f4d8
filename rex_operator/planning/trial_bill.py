"""What did a trial cost? Steps, seconds, and the useful samples that the incumbent would have made meanwhile."""

from __future__ import annotations

from rex_operator.planning.trial import Trial
from rex_operator.planning.types import Cost


class Bill:
    """Counts what a trial costs, from job time ``at`` and group step ``step`` on.

    ``pace`` are the useful samples a second that the incumbent made just before.
    """

    def __init__(self, at: float, step: int, pace: float) -> None:
        self._at, self._step, self._pace = at, step, pace
        self._first: int | None = None
        self._last: int | None = None
        self._rungs: list[tuple[int, float]] = []
        """Steps, and useful samples of each, of the rungs that a trial has left."""

    def seen(self, first: int) -> None:
        """The plan on trial runs since step ``first``."""
        self._first = first if self._first is None else self._first

    def climbed(self, last: int, useful: float) -> None:
        """The plan on trial ran up to step ``last``; another takes its place."""
        if self._first is not None:
            self._rungs.append((max(0, last - self._first + 1), useful))
        self._first = None

    def left(self, last: int) -> None:
        """The plan on trial ran up to step ``last``."""
        self._last = last

    def total(self, trial: Trial, at: float, step: int) -> Cost:
        """Return the cost up to job time ``at`` and group step ``step``."""
        steps, seconds = max(0, step - self._step), max(0.0, at - self._at)
        tried = 0 if self._first is None else max(0, (step if self._last is None else self._last) - self._first + 1)
        before = sum(count for count, _ in self._rungs)
        tried = min(tried, max(0, steps - before))
        made = sum(count * useful for count, useful in self._rungs) + tried * trial.useful
        made += max(0, steps - before - tried) * trial.incumbent_useful
        return Cost(steps=steps, seconds=seconds, samples=made - seconds * self._pace)
