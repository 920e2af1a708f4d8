"""From a worker's change of speed to other shares it takes a few steps, and without a change there are none."""

from __future__ import annotations

import numpy as np
import pytest

from rex_operator.planning import Planner
from tests.planning.simulated import MIX, Job, spec


def job(seed: int = 0, **more: float) -> Job:
    planner = Planner(spec(512, 32, 4096, trials=0), np.random.default_rng(seed))
    return Job.of(planner, MIX, seed=seed, **more)


def moved(run: Job) -> list[int]:
    return [d.step for d in run.planner.decisions if d.kind == "rebalanced"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_jump_moves_shares_after_three_steps_and_a_look(factor: float, seed: int) -> None:
    run = job(seed)
    run.run(40)
    changed = run.step
    run.slow["w0"] = factor
    run.run(3)
    assert min(s for s in moved(run) if s > changed) - changed <= 3 + 12, "a look is every half second, ten steps here"


def test_a_jump_right_after_a_move_is_seen_too() -> None:
    """A plan's first steps are not blind: the workers' models say what to expect of them."""
    run = job(1)
    run.run(40)
    run.slow["w0"] = 2.0
    run.run(1.2)
    first = moved(run)[-1]
    run.slow.clear()
    changed = run.step
    run.run(1.5)
    assert moved(run)[-1] > first
    assert moved(run)[-1] - changed <= 15


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6, 0.8])
def test_noise_of_five_percent_moves_nothing_once_shares_fit(correlation: float) -> None:
    run = job(2, noise=0.05, correlation=correlation)
    run.run(40)
    before = len(moved(run))
    run.run(60)
    assert len(moved(run)) - before <= 1
