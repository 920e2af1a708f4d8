"""Who takes how many samples, so that all finish together?

The group's step takes as long as its slowest worker, so the shares minimise the largest time, subject to the memory
ceilings, ``batch.minShare`` samples each at least, and an exact sum. With monotone step times this has a simple exact
solution: the number of samples that all workers together finish within T grows with T, so bisect T until it is the
batch (covers compute- and communication-bound workers and ceilings alike; cf. OptPerf in Cannikin, Middleware'24).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rex_operator.planning.curves import Array, StepTimeCurve
from rex_operator.planning.types import CannotPlan

Whole = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """What is known of one worker's speed and memory."""

    worker_id: str
    curve: StepTimeCurve
    slowness: float = 1.0
    """Its time relative to its kind's curve."""
    cap: int | None = None
    """Most samples per micro-batch."""


class Team:
    """A group of workers with vectorised step times; workers that share a curve are computed together."""

    def __init__(self, models: Sequence[WorkerModel]) -> None:
        self.models = tuple(models)
        self._slowness = np.array([m.slowness for m in models])
        self._caps = np.array([np.inf if m.cap is None else m.cap for m in models])
        kinds: dict[int, list[int]] = {}
        for i, model in enumerate(models):
            kinds.setdefault(id(model.curve), []).append(i)
        self._kinds = [(models[rows[0]].curve, np.array(rows)) for rows in kinds.values()]

    def __len__(self) -> int:
        return len(self.models)

    def times(self, shares: npt.ArrayLike, accumulation: int) -> Array:
        """Return each worker's compute seconds for its share of one optimiser step."""
        micro = np.asarray(shares, dtype=np.float64) / accumulation
        out = np.empty(len(self))
        for curve, rows in self._kinds:
            out[rows] = curve.time(micro[rows])
        seconds: Array = out * self._slowness * accumulation
        return seconds

    def fit_within(self, seconds: npt.ArrayLike, accumulation: int, least: int) -> Array:
        """Return how many samples each worker finishes within ``seconds``, between ``least`` and its ceiling.

        For seconds of any shape; the workers are the result's last axis.
        """
        micro_seconds = np.asarray(seconds, dtype=np.float64)[..., None] / accumulation / self._slowness
        out = np.empty(micro_seconds.shape)
        for curve, rows in self._kinds:
            out[..., rows] = curve.largest(micro_seconds[..., rows])
        return np.asarray(np.clip(out * accumulation, least, np.maximum(self._caps * accumulation, least)))

    def room(self, accumulation: int) -> float:
        """Return the most samples per step that the ceilings allow; infinity if a worker has none."""
        return float((self._caps * accumulation).sum())

    def whole_within(self, seconds: float, accumulation: int, least: int) -> Whole:
        """Return `fit_within` in whole samples."""
        return np.floor(np.minimum(self.fit_within(seconds, accumulation, least), 2.0**53) + 1e-7).astype(np.int64)


def split(models: Sequence[WorkerModel], batch: int, accumulation: int = 1, min_share: int = 1) -> dict[str, int]:
    """Return the shares that minimise the slowest worker's time; they sum to ``batch``.

    Every share is at least ``min_share`` x ``accumulation`` (so many samples in each pass); with a ``min_share`` of 1,
    at least 1 where the batch is too small for a sample in each pass. Raises ``CannotPlan`` when the batch has too few
    samples for that, or more than the ceilings hold.
    """
    team = Team(models)
    check_room(team, batch, accumulation, min_share)
    least = min_share * accumulation if batch >= min_share * accumulation * len(team) else 1
    low = float(team.times(np.full(len(team), least), accumulation).min()) / 2
    high = max(low, float(team.times(np.full(len(team), batch / len(team)), accumulation).max()))
    while team.whole_within(high, accumulation, least).sum() < batch:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if team.whole_within(middle, accumulation, least).sum() >= batch:
            high = middle
        else:
            low = middle
    shares = team.whole_within(high, accumulation, least)
    _give_back(team, shares, int(shares.sum()) - batch, accumulation, least)
    return dict(zip((m.worker_id for m in models), shares.tolist(), strict=True))


def _give_back(team: Team, shares: Whole, surplus: int, accumulation: int, least: int) -> None:
    """Take ``surplus`` samples away, from the slowest first: no time grows, so the largest stays the smallest."""
    backwards = -np.arange(len(team))
    while surplus > 0:
        times = np.where(shares > least, team.times(shares, accumulation), -np.inf)
        slowest = np.lexsort((backwards, -times))[: min(surplus, int(np.isfinite(times).sum()))]
        shares[slowest] -= 1
        surplus -= slowest.size


def check_room(team: Team, batch: int, accumulation: int, min_share: int = 1) -> None:
    """Raise ``CannotPlan`` unless ``batch`` can be split over the team."""
    if not len(team):
        raise CannotPlan("there is no worker to plan for")
    hopeless = [m.worker_id for m in team.models if m.cap is not None and m.cap < min_share]
    if hopeless:
        names, what = ", ".join(hopeless[:5]), "one sample fits" if min_share == 1 else f"{min_share} samples fit"
        advice = "drop its pool" if min_share == 1 else "drop its pool or lower batch.minShare"
        raise CannotPlan(f"not even {what} in the memory of {names}; {advice}")
    if batch < len(team):
        raise CannotPlan(f"a batch of {batch} cannot give {len(team)} workers a sample each")
    if min_share > 1 and batch < min_share * accumulation * len(team):
        raise CannotPlan(
            f"a batch of {batch} cannot give {len(team)} workers batch.minShare ({min_share}) samples in each of"
            f" {accumulation} passes"
        )
    room = team.room(accumulation)
    if batch > room:
        raise CannotPlan(
            f"a batch of {batch} does not fit: the workers' memory holds {int(room)} samples in {accumulation} passes"
        )


def even_split(
    workers: Mapping[str, int | None], batch: int, accumulation: int = 1, min_share: int = 1
) -> dict[str, int]:
    """Return shares as equal as the ceilings (samples per micro-batch, None: none) allow, each as `split` has it.

    Raises ``CannotPlan``.
    """
    flat = StepTimeCurve((1.0,), (1.0,), 1.0, 1.0)
    return split([WorkerModel(w, flat, cap=cap) for w, cap in workers.items()], batch, accumulation, min_share)


def smallest_accumulation(caps: Sequence[int | None], batch: int, start: int = 1, most: int = 1024) -> int | None:
    """Return the fewest passes from ``start`` in which ``batch`` fits the ceilings; None when none does."""
    if any(cap is None for cap in caps):
        return start
    room = sum(cap for cap in caps if cap is not None)
    if room <= 0:
        return None
    needed = max(start, math.ceil(batch / room))
    return needed if needed <= most else None
