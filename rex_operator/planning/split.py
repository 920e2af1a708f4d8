"""Who takes how many samples, so that all finish together?

The group's step takes as long as its slowest worker, so the shares minimise the largest time, subject to the memory
ceilings, ``batch.minShare`` samples each at least, and an exact sum. With monotone step times this has a simple exact
solution: the number of samples that all workers together finish within T grows with T, so bisect T until it is the
batch (covers compute- and communication-bound workers and ceilings alike; cf. OptPerf in Cannikin, Middleware'24).

Passes need not be equally many: only the last one takes part in the exchange of gradients, and each costs its fixed
time again. So a worker that is known to hold ``fits`` samples takes its share in the number of passes that is fastest
for it: few, as a rule (ours; the published balancers give all the same number).
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
_EXACT = 1e-12
"""Relative width at which bisection ends ..."""
MOST_PASSES = 64
"""Passes that a worker takes of its own accord; more only where memory leaves no choice."""
_IN_VAIN = 2
"""After so many more passes that are better for nobody, still more are not either: each costs its fixed time."""
_FEW = 16
"""... unless no more than so many samples are too much before: taking those away one by one is exact as well."""


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """What is known of one worker's speed and memory."""

    worker_id: str
    curve: StepTimeCurve
    slowness: float = 1.0
    """Its time relative to its kind's curve."""
    cap: int | None = None
    """Most samples per micro-batch."""
    fits: int | None = None
    """Samples per micro-batch, at most ``cap``, that it holds for sure: it takes its share in its own number of passes,
    none larger than that unless the plan has too few. None: it takes its share in as many passes as the plan has."""
    least: int = 1
    """Samples of each of its own passes, at least."""


class _Curves:
    """The curves of many workers, looked up all at once.

    All tables lie behind one another on a single axis, a gap apart, so that one interpolation serves every worker.
    """

    def __init__(self, curves: Sequence[StepTimeCurve]) -> None:
        own: dict[int, int] = {}
        kinds: list[StepTimeCurve] = []
        for curve in curves:
            if own.setdefault(id(curve), len(kinds)) == len(kinds):
                kinds.append(curve)
        kind = np.array([own[id(curve)] for curve in curves], dtype=np.int64)
        tables = [curve.table for curve in kinds]
        ends = np.array([(x[0], x[-1], t[0], t[-1], c.below, c.above) for (x, t), c in zip(tables, kinds, strict=True)])
        self._low_x, self._high_x, self._low_t, self._high_t, self._below, self._above = ends.reshape(-1, 6)[kind].T
        self._first, self._last = np.exp(self._low_x), np.exp(self._high_x)
        self._fastest, self._slowest = np.exp(self._low_t), np.exp(self._high_t)
        self._x, self._x_shift = _strung([x for x, _ in tables])
        self._t, self._t_shift = _strung([t for _, t in tables])
        self._by_x, self._by_t = self._x_shift[kind], self._t_shift[kind]

    def time(self, sizes: Array) -> Array:
        """Return what `StepTimeCurve.time` does, for each worker's size (the last axis)."""
        at = np.clip(np.log(np.maximum(sizes, 1e-9)), self._low_x, self._high_x)
        inside = np.exp(np.interp(at + self._by_x, self._x, self._t) - self._by_t)
        low = self._fastest * (1 + self._below * (sizes / self._first - 1))
        high = self._slowest * (1 + self._above * (sizes / self._last - 1))
        return np.where(sizes < self._first, low, np.where(sizes > self._last, high, inside))

    def largest(self, seconds: Array) -> Array:
        """Return what `StepTimeCurve.largest` does, for each worker's seconds (the last axis)."""
        at = np.clip(np.log(np.maximum(seconds, 1e-300)), self._low_t, self._high_t)
        inside = np.exp(np.interp(at + self._by_t, self._t, self._x) - self._by_x)
        low = self._first * np.maximum(0.0, 1 + (seconds / self._fastest - 1) / self._below)
        high = self._last * (1 + (seconds / self._slowest - 1) / self._above)
        return np.where(seconds < self._fastest, low, np.where(seconds > self._slowest, high, inside))


def _strung(tables: Sequence[Array]) -> tuple[Array, Array]:
    """Return ascending tables behind one another as one ascending array, and the shift of each."""
    if not tables:
        return np.array([]), np.array([])
    lengths = np.array([table[-1] - table[0] + 1.0 for table in tables])
    shifts = np.concatenate([[0.0], np.cumsum(lengths[:-1])]) - np.array([table[0] for table in tables])
    return np.concatenate([table + shift for table, shift in zip(tables, shifts, strict=True)]), shifts


def own_passes(models: Sequence[WorkerModel]) -> bool:
    """Return whether workers take their own numbers of passes."""
    return any(m.fits is not None for m in models)


class Team:
    """A group of workers with vectorised step times, however many different curves they have."""

    def __init__(self, models: Sequence[WorkerModel]) -> None:
        self.models = tuple(models)
        self._slowness = np.array([m.slowness for m in models])
        self._caps = np.array([np.inf if m.cap is None else m.cap for m in models])
        self._curves = _Curves([m.curve for m in models])
        self._fits = np.array([0.0 if m.fits is None else m.fits for m in models])
        self._least = np.array([m.least for m in models])
        self._own = own_passes(models)

    def __len__(self) -> int:
        return len(self.models)

    def passes(self, shares: npt.ArrayLike, accumulation: int) -> Whole:
        """Return in how many passes each worker takes its share, at most ``accumulation``.

        As many as that where it has no number of its own.
        """
        shares = np.asarray(shares, dtype=np.float64)
        found = np.full(shares.shape, accumulation, dtype=np.int64)
        if not self._own or accumulation == 1:
            return found
        fewest = np.where(self._fits > 0, np.ceil(shares / np.maximum(self._fits, 1.0) - 1e-9), accumulation)
        most = np.minimum(shares // self._least, accumulation)
        shortest, in_vain = np.full(shares.shape, np.inf), 0
        for passes in range(1, accumulation + 1):
            filled = (fewest <= passes) & (passes <= most)
            may = filled | (passes == np.minimum(fewest, accumulation))
            seconds = np.where(may, self.times(shares, passes), np.inf)
            better = seconds < shortest
            found = np.where(better, passes, found)
            shortest = np.minimum(seconds, shortest)
            in_vain = 0 if better.any() or (passes < fewest).any() else in_vain + 1
            if in_vain == _IN_VAIN:
                break
        return found

    def times(self, shares: npt.ArrayLike, passes: npt.ArrayLike) -> Array:
        """Return each worker's compute seconds for its share of one optimiser step, in so many passes."""
        each = np.asarray(passes, dtype=np.float64)
        micro = np.asarray(shares, dtype=np.float64) / each
        seconds: Array = self._curves.time(micro) * self._slowness * each
        return seconds

    def most_passes(self, accumulation: int) -> int:
        """Return the passes that a worker may take under a plan that is named by ``accumulation`` of them."""
        return max(MOST_PASSES, accumulation) if self._own else accumulation

    def best_times(self, shares: npt.ArrayLike, accumulation: int) -> Array:
        """Return `times` in the workers' own passes."""
        return self.times(shares, self.passes(shares, accumulation))

    def least(self, batch: float, accumulation: int, min_share: int, idle: bool = False) -> Whole:
        """Return the least share of each worker: ``min_share`` samples in each of its passes.

        1 where the batch is too small for that (with ``idle``, for a single one): some passes are empty then.
        """
        least = np.where(self._fits > 0, min_share, min_share * accumulation).astype(np.int64)
        too_small = batch < (least.min() if idle else least.sum())
        return np.ones_like(least) if min_share == 1 and too_small else least

    def fit_within(self, seconds: npt.ArrayLike, accumulation: int, least: npt.ArrayLike) -> Array:
        """Return how many samples each worker finishes within ``seconds``, between ``least`` and its ceiling.

        For seconds of any shape; the workers are the result's last axis.
        """
        own_seconds = np.asarray(seconds, dtype=np.float64)[..., None] / self._slowness
        done = self._curves.largest(own_seconds / accumulation) * accumulation
        if self._own and accumulation > 1:
            done = self._in_fewer(own_seconds, done, accumulation)
        return np.asarray(np.clip(done, least, np.maximum(self._caps * accumulation, least)))

    def _in_fewer(self, own_seconds: Array, done: Array, accumulation: int) -> Array:
        """Return what is done where each worker may take fewer passes; ``done`` is that in all of them."""
        fewer, in_vain = np.zeros(done.shape), 0
        for passes in range(1, accumulation):
            micro = np.minimum(self._curves.largest(own_seconds / passes), self._fits)
            some = np.where(micro >= self._least, micro * passes, 0.0)
            in_vain = 0 if (some > fewer).any() else in_vain + 1
            if in_vain == _IN_VAIN:
                break
            fewer = np.maximum(fewer, some)
        empty = (self._fits > 0) & (done < self._least * accumulation)
        return np.where(empty, fewer, np.maximum(fewer, done))

    def room(self, accumulation: int, workers: int | None = None) -> float:
        """Return the most samples per step that the ceilings allow, at most so many ``workers`` taking part.

        Infinity if a worker has none.
        """
        return float(np.sort(self._caps)[::-1][:workers].sum() * accumulation)

    def whole_within(self, seconds: float, accumulation: int, least: npt.ArrayLike) -> Whole:
        """Return `fit_within` in whole samples."""
        return np.floor(np.minimum(self.fit_within(seconds, accumulation, least), 2.0**53) + 1e-7).astype(np.int64)


def split(
    models: Sequence[WorkerModel], batch: int, accumulation: int = 1, min_share: int = 1, idle: bool = False
) -> dict[str, int]:
    """Return the shares that minimise the slowest worker's time; they sum to ``batch``.

    Every share is at least ``min_share`` in each of its passes; with a ``min_share`` of 1, at least 1 where the batch
    is too small for a sample in each pass. With ``idle`` a worker whose least share would hold up the others, or does
    not fit in its memory, gets 0 instead. Raises ``CannotPlan`` when the batch has too few samples for that, or more
    than the ceilings hold.
    """
    team = Team(models)
    if idle:
        team = _able(team, min_share)
    check_room(team, batch, accumulation, min_share, idle)
    shares = _shortest(team, batch, accumulation, team.least(batch, accumulation, min_share, idle), idle)
    found = dict(zip((m.worker_id for m in team.models), shares.tolist(), strict=True))
    return {m.worker_id: found.get(m.worker_id, 0) for m in models}


def _able(team: Team, min_share: int) -> Team:
    """Return the workers that hold a least share at all; all of them, if none does, for the error to name."""
    able = [m for m in team.models if m.cap is None or m.cap >= min_share]
    return Team(able) if able else team


def _shortest(team: Team, batch: int, accumulation: int, least: Whole, idle: bool) -> Whole:
    """Return the best whole shares, each ``least`` or more, or 0 with ``idle``.

    The samples that are done within T grow with T, also where those who cannot do ``least`` of them do none and only
    so many take part as ``batch`` has least shares; so the smallest T for which they are enough is found by bisection.
    What is too much at the end is taken from whoever is slowest, one sample at a time. That is optimal from any T that
    is enough: had other shares a shorter step, somebody who got less than there was slowest with no more than there.
    """

    def within(seconds: float) -> Whole:
        whole = team.whole_within(seconds, accumulation, 0 if idle else least)
        if not idle:
            return whole
        whole[whole < least] = 0
        order = np.argsort(-whole, kind="stable")
        whole[order[np.cumsum(least[order]) > batch]] = 0
        return whole

    low = float(team.best_times(least, accumulation).min()) / 2
    high = max(low, float(team.best_times(np.full(len(team), batch / len(team)), accumulation).max()))
    shares = within(high)
    while shares.sum() < batch:
        low, high = high, 2 * high
        shares = within(high)
    few = 0 if idle else _FEW  # who takes part hangs on T itself
    while high - low > _EXACT * high and shares.sum() - batch > few:
        middle = (low + high) / 2
        attempt = within(middle)
        if attempt.sum() >= batch:
            high, shares = middle, attempt
        else:
            low = middle
    _give_back(team, shares, int(shares.sum()) - batch, accumulation, least)
    return shares


def _give_back(team: Team, shares: Whole, surplus: int, accumulation: int, least: Whole) -> None:
    """Take ``surplus`` samples away, each from the slowest worker that has more than ``least``; of equal ones the last.

    Where bisection went as far as numbers allow, many are left only where as many workers are equally slow: those give
    one each, since no time grows.
    """
    backwards = -np.arange(len(team))
    while surplus > 0:
        times = np.where(shares > least, team.best_times(shares, accumulation), -np.inf)
        count = min(surplus, int(np.isfinite(times).sum())) if surplus > _FEW else 1
        shares[np.lexsort((backwards, -times))[:count]] -= 1
        surplus -= count


def check_room(team: Team, batch: int, accumulation: int, min_share: int = 1, idle: bool = False) -> None:
    """Raise ``CannotPlan`` unless ``batch`` can be split over the team; with ``idle``, over a part of it."""
    if not len(team):
        raise CannotPlan("there is no worker to plan for")
    hopeless = [m.worker_id for m in team.models if m.cap is not None and m.cap < min_share]
    if hopeless:
        names, what = ", ".join(hopeless[:5]), "one sample fits" if min_share == 1 else f"{min_share} samples fit"
        advice = "drop its pool" if min_share == 1 else "drop its pool or lower batch.minShare"
        raise CannotPlan(f"not even {what} in the memory of {names}; {advice}")
    needed = 1 if idle else len(team)
    if batch < needed:
        raise CannotPlan(f"a batch of {batch} cannot give {needed} workers a sample each")
    least = np.sort(team.least(batch, accumulation, min_share, idle))
    if min_share > 1 and batch < least[:needed].sum():
        raise CannotPlan(
            f"a batch of {batch} cannot give {needed} workers batch.minShare ({min_share}) samples in each of"
            f" {accumulation} passes"
        )
    room = team.room(accumulation, max(1, int((np.cumsum(least) <= batch).sum())) if idle else len(team))
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
