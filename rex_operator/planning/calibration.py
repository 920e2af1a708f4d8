"""Were the gains there that had been promised?

A search that promises too much wastes trials, one that promises too little stops too early. Each judged trial has both
figures on record: the gain expected before it, and the gain measured in it. All judged trials count, the rejected ones
too: among the accepted alone those whose measurement came out too well would be over-represented.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from rex_operator.planning.types import DecisionRecord


@dataclass(frozen=True, slots=True)
class Forecast:
    """A gain expected and measured, each relative: 0.05 = 5 % better."""

    expected: float
    measured: float
    interval: tuple[float, float] | None = None
    """95 % interval of ``measured``."""

    @property
    def met(self) -> bool | None:
        """Whether the measurement agrees with the expectation; None where it has no interval."""
        return None if self.interval is None else self.interval[0] <= self.expected <= self.interval[1]


@dataclass(frozen=True, slots=True)
class Calibration:
    """Expectations of a job, against what was measured."""

    trials: int
    bias: float
    """Median of measured less expected: negative = too much was promised."""
    error: float
    """Median distance of the two."""
    met: int
    """Expectations that lay within the 95 % interval of the measurement ..."""
    told: int
    """... of so many that have one."""


def forecast(record: DecisionRecord) -> Forecast | None:
    """Return what a decision expected and measured; None for one that did not do both."""
    if record.expectation is None or record.evidence is None:
        return None
    return Forecast(record.expectation, record.evidence.effect, record.evidence.interval)


def calibrate(forecasts: Iterable[Forecast | None]) -> Calibration | None:
    """Return how expectations came out; None without any."""
    known = [each for each in forecasts if each is not None]
    if not known:
        return None
    met = [each.met for each in known if each.met is not None]
    return Calibration(
        trials=len(known),
        bias=median(each.measured - each.expected for each in known),
        error=median(abs(each.measured - each.expected) for each in known),
        met=sum(met),
        told=len(met),
    )
