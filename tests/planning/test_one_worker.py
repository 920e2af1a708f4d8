"""A job of one device gets a noise scale, and with it a batch, from what it tells between the passes of a step."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rex_operator.planning import Planner
from rex_operator.planning.noise import NoiseEstimator, nested_estimate
from tests.planning.simulated import T4, Job, spec
from tests.planning.test_noise_scale import gradients


def test_it_runs_in_two_passes_until_its_noise_scale_is_known_and_then_finds_its_batch() -> None:
    job = Job.of(Planner(spec(64, 32, 2048), np.random.default_rng(0)), (T4,), noise_scale=lambda samples: 2000.0)
    job.run(300)
    kinds = job.kinds()
    assert kinds[:2] == ["membership", "adopted"]
    assert job.planner.decisions[1].reason.startswith("One worker shows its noise scale between two passes")
    assert (job.planner.view().noise_scale or 0) > 300, "a floor at least"
    assert "accepted" in kinds
    # The floor of a noise scale asks for less than the best batch, but for more than the first one.
    assert job.plan is not None and job.goodput(job.plan) > 1.02 * job.goodput(job.drafts[0])


@pytest.mark.parametrize(("part", "batch", "phi"), [(32, 64, 10.0), (8, 64, 100.0), (64, 100, 1000.0)])
def test_both_parts_are_unbiased(part: int, batch: int, phi: float) -> None:
    rng = np.random.default_rng(1)
    sizes = np.array([part, batch - part], dtype=float)
    found = []
    for _ in range(3000):
        local, whole = gradients(rng, sizes, phi)
        found.append(nested_estimate(part, float(local[0]), batch, whole))
    estimates = np.array(found)
    error = 4 * estimates.std(axis=0) / math.sqrt(len(estimates))
    assert abs(estimates[:, 0].mean() - phi) <= error[0]
    assert abs(estimates[:, 1].mean() - 1) <= error[1]


@pytest.mark.parametrize("first", [(0, math.nan), (64, 2.0), (32, math.nan), (32, math.inf), (32, -1.0)])
def test_what_tells_nothing_is_skipped(first: tuple[int, float]) -> None:
    estimator = NoiseEstimator()
    for _ in range(200):
        estimator.observe(np.array([64.0]), np.array([1.5]), 1.5, first)
    assert estimator.scale() is None and estimator.hopeless
