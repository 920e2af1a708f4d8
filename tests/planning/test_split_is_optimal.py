"""No other whole shares finish sooner: against all of them, with ceilings, least shares, passes and idle workers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rex_operator.planning.curves import Point, StepTimeCurve
from rex_operator.planning.split import Team, WorkerModel, split
from rex_operator.planning.types import CannotPlan
from tests.planning.test_split import curves, teams


def finish(models: list[WorkerModel], shares: tuple[int, ...], accumulation: int) -> float:
    busy = [(m, s) for m, s in zip(models, shares, strict=True) if s]
    return float(Team([m for m, _ in busy]).times([s for _, s in busy], accumulation).max())


def shortest(models: list[WorkerModel], batch: int, accumulation: int, min_share: int, idle: bool) -> float:
    """Return the best time over all whole shares that keep the rules; infinity where there are none."""
    full = min_share * accumulation
    least = full if batch >= full * (1 if idle else len(models)) else 1
    if least == 1 and min_share > 1:
        return math.inf
    choices = []
    for model in models:
        top = min(batch, model.cap * accumulation if model.cap is not None else batch)
        choices.append([0] * idle + list(range(least, top + 1)))
    found = [s for s in itertools.product(*choices) if sum(s) == batch]
    return min((finish(models, s, accumulation) for s in found), default=math.inf)


@given(teams(most=3), st.integers(1, 14), st.integers(1, 3), st.integers(1, 2), st.booleans())
@settings(max_examples=200, deadline=None)
def test_no_whole_shares_finish_sooner(
    models: list[WorkerModel], batch: int, accumulation: int, min_share: int, idle: bool
) -> None:
    best = shortest(models, batch, accumulation, min_share, idle)
    try:
        shares = split(models, batch, accumulation, min_share, idle)
    except CannotPlan:
        assert math.isinf(best)
        return
    assert sum(shares.values()) == batch and list(shares) == [m.worker_id for m in models]
    assert finish(models, tuple(shares.values()), accumulation) <= best * (1 + 1e-6)


LINE = StepTimeCurve.fit([Point(x, 0.01 + 0.001 * x, 1e-6) for x in (4, 16, 64, 256)])
HEAVY = StepTimeCurve.fit([Point(x, 2.0 + 0.001 * x, 1e-6) for x in (4, 16, 64, 256)])


def test_a_worker_whose_fixed_cost_holds_up_all_stays_idle_only_when_asked() -> None:
    models = [WorkerModel("a", LINE), WorkerModel("b", LINE), WorkerModel("slow", HEAVY)]
    assert split(models, 128)["slow"] == 1
    assert split(models, 128, idle=True) == {"a": 64, "b": 64, "slow": 0}


def test_a_worker_too_small_for_a_least_share_is_idle_when_asked_and_an_error_otherwise() -> None:
    models = [WorkerModel("a", LINE), WorkerModel("tiny", LINE, cap=2)]
    assert split(models, 64, 1, 4, idle=True) == {"a": 64, "tiny": 0}
    with pytest.raises(CannotPlan, match="tiny"):
        split(models, 64, 1, 4)


def test_when_nobody_can_it_is_said_though_idling_is_allowed() -> None:
    with pytest.raises(CannotPlan, match="not even 4 samples fit"):
        split([WorkerModel("a", LINE, cap=2), WorkerModel("b", LINE, cap=3)], 64, 1, 4, idle=True)


def test_no_more_workers_take_part_than_the_batch_has_least_shares() -> None:
    shares = split([WorkerModel(f"w{i}", LINE) for i in range(5)], 17, 2, 4, idle=True)
    assert sorted(shares.values()) == [0, 0, 0, 8, 9]


def test_ceilings_that_too_few_workers_could_fill_are_told() -> None:
    with pytest.raises(CannotPlan, match="memory holds 16 samples"):
        split([WorkerModel(f"w{i}", LINE, cap=8) for i in range(3)], 17, 1, 8, idle=True)


@given(st.lists(curves, min_size=2, max_size=8), st.integers(0, 10**6))
@settings(deadline=None, max_examples=50)
def test_many_curves_at_once_are_looked_up_as_each_by_itself(kinds: list[StepTimeCurve], seed: int) -> None:
    rng = np.random.default_rng(seed)
    models = [WorkerModel(f"w{i}", kinds[i % len(kinds)], float(rng.uniform(0.3, 3))) for i in range(20)]
    sizes = rng.geometric(0.02, 20)
    team, times = (
        Team(models),
        np.array([m.slowness * float(m.curve.time(s)) for m, s in zip(models, sizes, strict=True)]),
    )
    assert team.times(sizes, 1) == pytest.approx(times, rel=1e-9)
    done = np.array([float(m.curve.largest(0.7 / m.slowness)) for m in models])
    again = team.times(np.maximum(team.fit_within(0.7, 1, 0), 1e-9), 1)
    mine = np.array([m.slowness * float(m.curve.time(max(d, 1e-9))) for m, d in zip(models, done, strict=True)])
    assert again == pytest.approx(mine, rel=1e-6), "on a flat stretch the size may differ, its time may not"


def test_a_cliff_is_not_climbed_unless_the_batch_forces_it() -> None:
    cliff = StepTimeCurve.fit([Point(x, 0.001 * x * (1.8 if x > 64 else 1)) for x in (16, 32, 64, 80, 160)])
    assert [(c.low, c.high) for c in cliff.cliffs] == [pytest.approx((64, 80))]
    shares = split([WorkerModel("cliff", cliff), WorkerModel("smooth", LINE)], 150)
    assert 64 <= shares["cliff"] <= 72
