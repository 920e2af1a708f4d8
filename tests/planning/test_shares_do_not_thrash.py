"""Noise moves nothing: shares and batch stay where they are as long as nothing really changed (C-055)."""

from __future__ import annotations

import numpy as np
import pytest

from rex_operator.planning import Planner
from tests.planning.simulated import DEMO, MIX, T4, Device, Job, spec


class Alternating(Job):
    """Every step all the other way: 30 % faster, 30 % slower."""

    def _noisy(self, worker: str) -> float:
        odd = (self.step + int(worker[1:])) % 2
        return 1.3 if odd else 0.7


def test_c_055_alternating_speeds_move_nothing() -> None:
    planner = Planner(spec(512, 32, 4096, trials=0), np.random.default_rng(0))
    run = Alternating(planner, {}, np.random.default_rng(0))
    run.join({f"w{i}": T4 for i in range(4)})
    run.run(300)
    assert run.kinds().count("rebalanced") <= 1
    assert run.plan is not None and run.plan.global_batch == 512


@pytest.mark.parametrize(("noise", "correlation"), [(0.02, 0.0), (0.10, 0.6), (0.30, 0.0), (0.30, 0.6)])
def test_noise_moves_shares_rarely_once_they_fit(noise: float, correlation: float) -> None:
    planner = Planner(spec(512, 32, 4096, trials=0), np.random.default_rng(0))
    run = Job.of(planner, MIX, noise=noise, correlation=correlation)
    run.run(60)
    before = run.kinds().count("rebalanced")
    run.run(200)
    assert run.kinds().count("rebalanced") - before <= 4


@pytest.mark.parametrize("count", [16, 64])
def test_many_equal_workers_keep_equal_shares(count: int) -> None:
    planner = Planner(spec(32 * count, 32, 2**16, trials=0), np.random.default_rng(0))
    run = Job(planner, {}, np.random.default_rng(0), noise=0.05)
    run.join({f"w{i}": Device("t4", 0.018, 0.0011) for i in range(count)})
    run.run(40)
    assert run.kinds().count("rebalanced") <= 1


def test_c_164_a_converged_job_stays_still() -> None:
    planner = Planner(spec(64, 64, 512), np.random.default_rng(0))
    run = Job.of(planner, DEMO, noise=0.02)
    run.run(200)
    assert planner.converged
    trials = run.kinds().count("trial-started")
    assert trials <= 8
    plan = run.plan
    run.run(25)  # 50 polls
    assert run.plan == plan
    assert run.kinds().count("trial-started") == trials
