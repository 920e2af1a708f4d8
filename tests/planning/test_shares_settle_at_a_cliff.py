"""Where a device's time jumps between two sizes, shares come to rest on one side of the jump (C-055, C-168)."""

from __future__ import annotations

import numpy as np
import pytest

from rex_operator.planning import Planner
from rex_operator.planning.patience import Trodden
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


HERE = {"a": 50, "b": 50}


def wandered(moves: int) -> Trodden:
    """Shares that moved every ten steps; the second ones took least."""
    made = Trodden()
    for i in range(moves):
        made.at({"a": 10 * i, "b": 100 - 10 * i}, 1.0 - 0.2 * (i == 1))
        made.leave(10 * i)
    return made


def test_who_moved_again_and_again_goes_back_to_the_best_and_rests_longer_each_time() -> None:
    made = wandered(6)
    assert not wandered(4).restless(40, HERE) and made.restless(50, HERE)
    assert made.best(HERE) == ({"a": 10, "b": 90}, 0.8)
    assert not made.restless(200, HERE), "after a rest shares may move again"
    made.come_back()
    assert made.restless(200, HERE)
    made.elsewhere()
    assert made.restless(200, HERE) and not made.restless(200, {"a": 32, "b": 32}), "each batch has shares of its own"
    made.clear()
    assert made.best(HERE) is None and not made.restless(200, HERE)


def test_many_cliffs_do_not_keep_shares_moving_for_ever() -> None:
    cliffs = []
    for device, above in ((A100, 60), (V100, 30), (T4, 12)):
        steep = Cliff(device.kind, device.fixed, device.each)
        steep.above = above
        cliffs += [steep, steep]
    planner = Planner(spec(256, 32, 4096, trials=0), np.random.default_rng(0))
    job = Job.of(planner, cliffs, seed=0, noise=0.02)
    job.run(90)
    before, step = job.kinds().count("rebalanced"), job.step
    job.run(60)
    assert job.kinds().count("rebalanced") - before <= (job.step - step) / 60
    assert job.plan is not None and job.step_s(job.plan) <= 1.1 * min(job.step_s(draft) for draft in job.drafts)
