"""Where a device's time jumps between two sizes, shares come to rest on one side of the jump (C-055, C-168)."""

from __future__ import annotations

import numpy as np
import pytest

from rex_operator.planning import Planner
from tests.planning.simulated import A100, T4, V100, Device, Job, spec


class Cliff(Device):
    """Above some samples a pass takes so many times as long."""

    above, times = 40, 1.7

    def seconds(self, samples: float) -> float:
        return super().seconds(samples) * (self.times if samples > self.above else 1)


@pytest.mark.parametrize("above", [60, 70, 80])
@pytest.mark.parametrize("seed", range(2))
def test_shares_do_not_go_to_and_fro_over_a_cliff(above: int, seed: int) -> None:
    steep = Cliff("v100", V100.fixed, V100.each)
    steep.above = above
    planner = Planner(spec(256, 32, 4096, trials=0), np.random.default_rng(seed))
    job = Job.of(planner, (A100, steep, T4), seed=seed, noise=0.02)
    job.run(60)
    before = job.kinds().count("rebalanced")
    job.run(120)
    assert job.kinds().count("rebalanced") - before <= 3
    best = min(job.step_s(draft) for draft in job.drafts)
    assert job.plan is not None and job.step_s(job.plan) <= 1.05 * best
