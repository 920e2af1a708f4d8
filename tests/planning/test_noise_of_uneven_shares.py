"""The pooled noise estimator reaches the errors that a Monte Carlo study of it gave, where the textbook's is biased."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rex_operator.planning.noise import NoiseEstimator, pooled_estimate
from tests.planning.test_noise_scale import gradients

DIMENSIONS = 200
STUDY = [
    ([48, 16], 10.0, 0.101, 0.061),
    ([100, 60, 30, 10], 10.0, 0.057, 0.032),
    ([100, 60, 30, 10], 1000.0, 0.058, 0.66),
    ([128, 128, 128, 20], 10.0, 0.058, 0.022),
    ([128, 128, 128, 20], 1000.0, 0.058, 0.36),
]
"""Shares, noise scale, relative RMSE of tr Sigma, RMSE of |G|^2 = 1, all of one step."""


@pytest.mark.parametrize(("batches", "phi", "trace_rmse", "signal_rmse"), STUDY)
def test_one_steps_errors_are_those_of_the_study(
    batches: list[int], phi: float, trace_rmse: float, signal_rmse: float
) -> None:
    rng = np.random.default_rng(0)
    b = np.array(batches, dtype=float)
    found = np.array([pooled_estimate(b, *gradients(rng, b, phi, DIMENSIONS)) for _ in range(2000)])
    assert math.sqrt(np.mean((found[:, 0] / phi - 1) ** 2)) == pytest.approx(trace_rmse, rel=0.08)
    assert math.sqrt(np.mean((found[:, 1] - 1) ** 2)) == pytest.approx(signal_rmse, rel=0.08)


@pytest.mark.parametrize(("batches", "phi", "factor"), [([48, 16], 10.0, 1.67), ([100, 60, 30, 10], 10.0, 2.33)])
def test_the_equal_batch_formula_is_biased_there(batches: list[int], phi: float, factor: float) -> None:
    rng = np.random.default_rng(0)
    b = np.array(batches, dtype=float)
    mean, traces = b.mean(), []
    for _ in range(1000):
        local, whole = gradients(rng, b, phi, DIMENSIONS)
        traces.append((local.mean() - whole) / (1 / mean - 1 / b.sum()))
    assert np.mean(traces) / phi == pytest.approx(factor, rel=0.05)


@pytest.mark.parametrize(("batches", "phi"), [([48, 16], 50.0), ([100, 60, 30, 10], 300.0)])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(batches: list[int], phi: float) -> None:
    rng = np.random.default_rng(1)
    b, inside = np.array(batches, dtype=float), 0
    for _ in range(80):
        estimator = NoiseEstimator()
        for _ in range(150):
            estimator.observe(b, *gradients(rng, b, phi, DIMENSIONS))
        scale = estimator.scale()
        assert scale is not None
        inside += scale.low <= phi <= scale.high
    assert inside / 80 >= 0.80, "a 90 % interval"


def test_early_steps_of_another_size_are_soon_forgotten() -> None:
    rng = np.random.default_rng(2)
    b = np.array([40.0, 24.0])
    estimator = NoiseEstimator()
    for step in range(300):
        local, whole = gradients(rng, b, 200.0, DIMENSIONS)
        size = 1000.0 if step < 20 else 1.0  # gradients of a fresh model are large
        estimator.observe(b, local * size, whole * size)
    scale = estimator.scale()
    assert scale is not None and scale.value == pytest.approx(200, rel=0.4)
