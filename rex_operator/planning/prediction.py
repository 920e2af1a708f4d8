"""How long would a step of another plan take, what would it be worth, and would it fit?

The curves know single workers; a plan is as slow as its slowest worker at the best split. Searching for the best split
of each of a hundred candidates would repeat the same bisection over and over, so the samples that a team finishes
within a time are tabulated once per number of passes, for all workers and times in one go, and read backwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rex_operator.planning.communication import Communication, plain
from rex_operator.planning.curves import Array
from rex_operator.planning.memory import Limits
from rex_operator.planning.power import TeamPower
from rex_operator.planning.split import Team, WorkerModel

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
    for passes in {p for _, p in plans}:
        rows = [i for i, (_, p) in enumerate(plans) if p == passes]
        batches = np.array([plans[i][0] for i in rows], dtype=np.float64)
        least = min_share * passes
        if min_share == 1 and batches.min() < passes * len(team):
            least = 1  # as `split` has it: some passes of some workers are empty
        smallest = team.times(np.full(len(team), least), passes)
        low = float(smallest.min()) / 2
        high = 2 * low
        top = min(float(batches.max()), team.room(passes))
        while team.fit_within(high, passes, least).sum() < top * (1 - 1e-9):
            high *= 2
        times = np.geomspace(low, high, _TIMES)
        done = team.fit_within(times, passes, least).sum(axis=-1)
        done = np.maximum.accumulate(done) + 1e-9 * np.arange(_TIMES)
        seconds = np.exp(np.interp(np.log(batches), np.log(done), np.log(times)))
        seconds = np.maximum(seconds, smallest.max())  # nobody can take less than ``least``
        possible = (batches <= team.room(passes)) & ((min_share == 1) | (batches >= least * len(team)))
        out[rows] = np.where(possible, cost.step_seconds(seconds, passes), np.nan)
    return out


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
        rows = np.flatnonzero(passes == each)
        batch = np.array([b for b, p in plans if p == each], dtype=np.float64)
        shares = team.fit_within(np.maximum(compute_s[rows], 1e-12), each, min_share * each)
        shares *= (batch / shares.sum(axis=-1))[:, None]  # a table's rounding, and what a least share is too much
        compute = np.array([team.times(row, each) for row in shares])
        out[rows] = power.joules(power.busy(shares, each), compute, seconds[rows])
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
        rows = np.flatnonzero(passes == each)
        shares = team.fit_within(np.maximum(compute_s[rows], 1e-12), each, min_share * each)
        micro = np.ceil(shares / each - 1e-6)
        for limits, workers in kinds.items():
            out[rows] *= limits.chance(micro[:, workers].max(axis=1))
    return out


def untried(plans: Sequence[tuple[int, int]], ran: Sequence[tuple[int, int]]) -> tuple[Array, Array]:
    """Return how far each plan's micro-batch lies from those that ran, in doublings.

    Two parts: the distance to the nearest one, if it lies between some, and the distance beyond all of them.
    """
    micro, known = (np.log2([b / p for b, p in them]) for them in (plans, ran))
    beyond = np.maximum(0.0, np.maximum(micro - known.max(), known.min() - micro))
    nearest = np.abs(micro[:, None] - known[None, :]).min(axis=1)
    return np.where(beyond > 0, 0.0, nearest), beyond


def sizes_between(low: int, high: int, per_doubling: int) -> set[int]:
    """Return whole numbers from ``low`` to ``high``, both included, about evenly spaced by their ratio."""
    if high <= low:
        return {low} if high == low else set()
    count = max(2, round(math.log2(high / low) * per_doubling) + 1)
    return set(np.rint(np.geomspace(low, high, count)).astype(int).tolist())
