"""The step times of the plans that ran: what the search's surrogate is fed with.

The search holds them against what the models say of now. But the models follow the workers' changing speeds, and a step
time that was measured before a change does not: a plan that ran while all were fast would look better than it is, for
ever. So all entries are kept at the same speeds, and are translated to others by what the models make of the
difference, just as they are translated to another team.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rex_operator.planning.communication import Communication
from rex_operator.planning.prediction import predict
from rex_operator.planning.search import Measured
from rex_operator.planning.split import WorkerModel
from rex_operator.planning.types import Record, WorkerInfo

MAX_KEPT = 128
_AGEING = 0.02**2 / 600
"""Variance of the log that a measurement gains per second: clusters drift."""
_OTHER_TEAM = 0.05**2
"""Variance added when the team changed and the time had to be carried over by the curves."""
MOVED = 1.05
"""A worker whose speed changed by this factor since the entries were aligned makes them be translated anew ..."""
_DOUBT = 0.35
"""... which adds a standard deviation of this part of (the log of) the factor."""


class KeptMeasure(Record):
    """One plan's median seconds per step, measured at job time ``at``; ``variance`` is of the logarithm."""

    global_batch: int
    accumulation: int
    seconds: float
    variance: float
    at: float
    team: str = ""
    """Whose step time it is (`team_of`)."""
    per_pass: float = 0.0
    """Samples of a pass of all workers then; 0: not known."""


def team_of(workers: Iterable[WorkerInfo]) -> str:
    """Return a mark that two teams share if they have equally many devices of each kind."""
    kinds = sorted(Counter(w.device for w in workers).items())
    return f"{zlib.crc32(repr(kinds).encode()):08x}"


class History:
    """One entry per (batch, accumulation), the newest; bounded."""

    def __init__(self, saved: Sequence[KeptMeasure] = ()) -> None:
        self._kept = {(m.global_batch, m.accumulation): m for m in saved}
        self._team = ""
        self._speeds: dict[str, float] = {}
        """By worker: its slowness, as all entries have it."""

    def put(
        self, batch: int, accumulation: int, seconds: float, error: float, at: float, per_pass: float = 0.0
    ) -> None:
        """Note a plan's median step time with the standard error of its logarithm."""
        if not (math.isfinite(seconds) and seconds > 0 and math.isfinite(error)):
            return
        self._kept[batch, accumulation] = KeptMeasure(
            global_batch=batch,
            accumulation=accumulation,
            seconds=seconds,
            variance=error**2,
            at=at,
            team=self._team,
            per_pass=per_pass,
        )
        if len(self._kept) > MAX_KEPT:
            del self._kept[min(self._kept, key=lambda plan: self._kept[plan].at)]

    def measured(self, at: float) -> tuple[Measured, ...]:
        """Return what was measured, the older the less certain."""
        return tuple(
            Measured(m.global_batch, m.accumulation, m.seconds, m.variance + _AGEING * max(0.0, at - m.at), m.per_pass)
            for m in self._kept.values()
        )

    def carry_over(
        self,
        before: Sequence[WorkerModel] | None,
        after: Sequence[WorkerModel] | None,
        overhead: float | Communication,
        team: str,
        then: float | Communication | None = None,
    ) -> None:
        """Translate all entries to ``team`` by the ratio of the predicted step times; drop what cannot be.

        ``overhead`` is what steps take beside computing, ``then`` the same under the new team, if that is different.
        An operator that has just started knows no team before; what it has kept of a team like this one stays.
        """
        self._team, self._speeds = team, _speeds(after or ())
        if not before:
            self._kept = {plan: measure for plan, measure in self._kept.items() if measure.team == team}
            return
        self._translate(before, after, overhead, overhead if then is None else then, _OTHER_TEAM)

    def align(self, models: Sequence[WorkerModel] | None, overhead: float | Communication) -> None:
        """Translate all entries to the workers' speeds of now, if any of these has clearly changed.

        The curves are those of now on both sides: what was learned of them is no change of speed.
        """
        if not models:
            return
        now = _speeds(models)
        if self._speeds.keys() != now.keys():
            self._speeds = now
        elif apart(now, self._speeds) > MOVED:
            then = [replace(model, slowness=self._speeds[model.worker_id]) for model in models]
            self._speeds = now
            self._translate(then, models, overhead, overhead, 0.0)

    def _translate(
        self,
        before: Sequence[WorkerModel],
        after: Sequence[WorkerModel] | None,
        overhead: float | Communication,
        then: float | Communication,
        variance: float,
    ) -> None:
        kept, self._kept = self._kept, {}
        if not after or not kept:
            return
        plans = list(kept)
        ratios = predict(after, then, plans) / predict(before, overhead, plans)
        for plan, ratio in zip(plans, ratios.tolist(), strict=True):
            if math.isfinite(ratio):
                old, doubt = kept[plan], (_DOUBT * math.log(ratio)) ** 2 if variance == 0 else variance
                told = {"seconds": old.seconds * ratio, "variance": old.variance + doubt, "team": self._team}
                self._kept[plan] = old.model_copy(update=told)

    def state(self) -> tuple[KeptMeasure, ...]:
        """Return what is to be kept."""
        return tuple(self._kept.values())


def _speeds(models: Sequence[WorkerModel]) -> dict[str, float]:
    return {model.worker_id: model.slowness for model in models}


def apart(now: Mapping[str, float], then: Mapping[str, float]) -> float:
    """Return the largest factor between a worker's slowness now and then (one at least); both name the same workers."""
    return max(max(now[worker] / then[worker], then[worker] / now[worker]) for worker in now)
