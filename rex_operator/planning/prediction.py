"""How long would a step of another plan take, what would it be worth, and would it fit?

The curves know single workers; a plan is as slow as its slowest worker at the best split. Searching for the best split
of each of a hundred candidates would repeat the same bisection over and over, so the samples that a team finishes
within a time are tabulated once per number of passes, for all workers and times in one go, and read backwards.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from rex_operator.planning.communication import Communication, plain
from rex_operator.planning.curves import Array
from rex_operator.planning.memory import Limits
from rex_operator.planning.power import TeamPower
from rex_operator.planning.split import MOST_PASSES, Team, WorkerModel

_TIMES = 96
"""Points of a table; between them the logarithms are joined by lines."""


def predict(
    models: Sequence[WorkerModel],
    overhead: float | Communication,
    plans: Sequence[tuple[int, int]],
    min_share: int = 1,
) -> Array:
    """Return the predicted seconds per step of each plan at its best split; NaN where `split` knows none.

    ``overhead`` is what a step takes beside the slowest worker's computing: seconds, or how they depend on the plan.
    """
    team, cost = Team(models), plain(overhead) if isinstance(overhead, float | int) else overhead
    out = np.full(len(plans), np.nan)
    for passes, rows, batches in _by_passes(plans):
        seconds, possible = _compute_seconds(team, team.most_passes(passes), batches, min_share)
        out[rows] = np.where(possible, cost.step_seconds(seconds, passes), np.nan)
    return out


def in_own_passes(models: Sequence[WorkerModel], sizes: Collection[int], min_share: int) -> list[tuple[int, int]]:
    """Return the plans, ascending, of these batches where workers take their own passes; without those that do not fit.

    A plan is named by the most passes that a worker takes at the best split.
    """
    batches, team = np.array(sorted(sizes), dtype=np.float64), Team(models)
    if not batches.size:
        return []
    _, possible = _compute_seconds(team, MOST_PASSES, batches, min_share)
    most = team.passes(_best_shares(team, MOST_PASSES, batches, min_share), MOST_PASSES).max(axis=-1)
    return list(zip(batches[possible].astype(int).tolist(), most[possible].tolist(), strict=True))


def samples_per_pass(models: Sequence[WorkerModel], plans: Sequence[tuple[int, int]], min_share: int) -> Array:
    """Return the sum of all workers' micro-batches under each plan at its best split."""
    team, out = Team(models), np.empty(len(plans))
    for passes, rows, batches in _by_passes(plans):
        most = team.most_passes(passes)
        shares = _best_shares(team, most, batches, min_share)
        out[rows] = (shares / team.passes(shares, most)).sum(axis=-1)
    return out


def _best_shares(team: Team, passes: int, batches: Array, min_share: int) -> Array:
    """Return about the best split of each batch, one row each."""
    least = team.least(float(batches.min()), passes, min_share)
    shares = team.fit_within(_compute_seconds(team, passes, batches, min_share)[0], passes, least)
    return np.asarray(shares * (batches / shares.sum(axis=-1))[:, None])  # a table's rounding


def _by_passes(plans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, list[int], Array]]:
    """Yield each number of passes with the places of its plans and their batches."""
    for passes in sorted({p for _, p in plans}):
        rows = [i for i, (_, p) in enumerate(plans) if p == passes]
        yield passes, rows, np.array([plans[i][0] for i in rows], dtype=np.float64)


def _compute_seconds(team: Team, passes: int, batches: Array, min_share: int) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Return the slowest worker's seconds for each batch at its best split, and whether it can be split at all."""
    least = team.least(float(batches.min()), passes, min_share)
    smallest = team.best_times(least, passes)
    low = float(smallest.min()) / 2
    high = 2 * low
    top = min(float(batches.max()), team.room(passes))
    while team.fit_within(high, passes, least).sum() < top * (1 - 1e-9):
        high *= 2
    times = np.geomspace(low, high, _TIMES)
    done = team.fit_within(times, passes, least).sum(axis=-1)
    done = np.maximum.accumulate(done) + 1e-9 * np.arange(_TIMES)
    seconds = np.exp(np.interp(np.log(batches), np.log(done), np.log(times)))
    possible = (batches <= team.room(passes)) & ((min_share == 1) | (batches >= least.sum()))
    return np.maximum(seconds, smallest.max()), possible  # nobody can take less than ``least``


def team_joules(
    models: Sequence[WorkerModel],
    power: TeamPower,
    overhead: float | Communication,
    plans: Sequence[tuple[int, int]],
    seconds: Array,
    min_share: int,
) -> Array:
    """Return the joules of a step of each plan, ``seconds`` long as `predict` has it (finite)."""
    team, passes = Team(models), np.array([p for _, p in plans])
    compute_s, out = computing(seconds, overhead, plans), np.empty(len(plans))
    for each in np.unique(passes).tolist():
        rows, most = np.flatnonzero(passes == each), team.most_passes(each)
        batch = np.array([b for b, p in plans if p == each], dtype=np.float64)
        least = team.least(float(batch.min()), most, min_share)
        shares = team.fit_within(np.maximum(compute_s[rows], 1e-12), most, least)
        shares *= (batch / shares.sum(axis=-1))[:, None]  # a table's rounding, and what a least share is too much
        own = team.passes(shares, most)
        out[rows] = power.joules(power.busy(shares, own), team.times(shares, own), seconds[rows])
    return out


def computing(seconds: Array, overhead: float | Communication, plans: Sequence[tuple[int, int]]) -> Array:
    """Return the slowest worker's computing in steps that take ``seconds``."""
    cost = plain(overhead) if isinstance(overhead, float | int) else overhead
    out, passes = np.empty(len(plans)), np.array([p for _, p in plans])
    for each in np.unique(passes).tolist():
        rows = passes == each
        out[rows] = cost.compute_seconds(seconds[rows], each)
    return out


def chance_to_fit(
    models: Sequence[WorkerModel],
    memory: Sequence[Limits],
    plans: Sequence[tuple[int, int]],
    compute_s: Array,
    min_share: int,
) -> Array:
    """Return the chance that no worker runs out of memory, ``compute_s`` being the plans' seconds of computation.

    Workers of whom the same is known are of one kind and fit or fail together: their largest share counts once. Kinds
    are taken for independent of each other.
    """
    team = Team(models)
    kinds: dict[Limits, list[int]] = {}
    for i, limits in enumerate(memory):
        kinds.setdefault(limits, []).append(i)
    out = np.ones(len(plans))
    passes = np.array([p for _, p in plans])
    for each in np.unique(passes).tolist():
        rows, most = np.flatnonzero(passes == each), team.most_passes(each)
        least = team.least(min(plans[i][0] for i in rows.tolist()), most, min_share)
        shares = team.fit_within(np.maximum(compute_s[rows], 1e-12), most, least)
        micro = np.ceil(shares / team.passes(shares, most) - 1e-6)
        for limits, workers in kinds.items():
            out[rows] *= limits.chance(micro[:, workers].max(axis=1))
    return out


def untried(plans: Array, ran: Array) -> tuple[Array, Array]:
    """Return how far each plan's samples per pass lie from those that ran, in doublings.

    Two parts: the distance to the nearest one, if it lies between some, and the distance beyond all of them.
    """
    micro, known = np.log2(plans), np.log2(ran)
    beyond = np.maximum(0.0, np.maximum(micro - known.max(), known.min() - micro))
    nearest = np.abs(micro[:, None] - known[None, :]).min(axis=1)
    return np.where(beyond > 0, 0.0, nearest), beyond


def sizes_between(low: int, high: int, per_doubling: int) -> set[int]:
    """Return whole numbers from ``low`` to ``high``, both included, about evenly spaced by their ratio."""
    if high <= low:
        return {low} if high == low else set()
    count = max(2, round(math.log2(high / low) * per_doubling) + 1)
    return set(np.rint(np.geomspace(low, high, count)).astype(int).tolist())
