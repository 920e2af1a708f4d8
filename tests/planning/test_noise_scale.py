"""The noise scale is right for unequal local batches, says when it does not know, and no bad report spoils it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rex_operator.planning.noise import NoiseEstimator, NoiseState, efficiency, pooled_estimate

BATCHES = ([48, 16], [100, 60, 30, 10], [128, 128, 128, 20], [16, 16, 16, 16])


def gradients(rng: np.random.Generator, batches: np.ndarray, phi: float, d: int = 100) -> tuple[np.ndarray, float]:
    """Draw |g_i|^2 and |g|^2 for |G| = 1 and tr Sigma = phi."""
    signal = np.ones(d) / math.sqrt(d)
    local = signal + rng.normal(size=(batches.size, d)) * np.sqrt(phi / d / batches)[:, None]
    mean = batches / batches.sum() @ local
    return (local**2).sum(axis=1), float(mean @ mean)


@pytest.mark.parametrize("batches", BATCHES)
@pytest.mark.parametrize("phi", [10.0, 1000.0])
def test_both_parts_are_unbiased_for_unequal_batches(batches: list[int], phi: float) -> None:
    rng = np.random.default_rng(0)
    b = np.array(batches, dtype=float)
    estimates = np.array([pooled_estimate(b, *gradients(rng, b, phi)) for _ in range(3000)])
    error = 4 * estimates.std(axis=0) / math.sqrt(len(estimates))
    assert abs(estimates[:, 0].mean() - phi) <= error[0]
    assert abs(estimates[:, 1].mean() - 1) <= error[1]


@pytest.mark.parametrize("batches", BATCHES)
def test_the_average_converges_and_its_interval_holds_the_truth(batches: list[int]) -> None:
    rng = np.random.default_rng(1)
    b = np.array(batches, dtype=float)
    inside = 0
    for _ in range(20):
        estimator = NoiseEstimator()
        for _ in range(300):
            estimator.observe(b, *gradients(rng, b, 150.0))
        scale = estimator.scale()
        assert scale is not None and scale.value == pytest.approx(150, rel=0.2)
        inside += scale.low <= 150 <= scale.high
    assert inside >= 15


def test_it_follows_a_noise_scale_that_grows() -> None:
    rng = np.random.default_rng(2)
    b = np.array([40.0, 24.0])
    estimator = NoiseEstimator()
    for step in range(2000):
        estimator.observe(b, *gradients(rng, b, 50.0 if step < 1000 else 500.0))
    scale = estimator.scale()
    assert scale is not None and scale.value == pytest.approx(500, rel=0.35)


def test_it_keeps_up_with_a_noise_scale_that_grows_steadily() -> None:
    """By 1.3 times in a hundred steps: an average over the last 300 would tell little more than half of it."""
    rng = np.random.default_rng(5)
    b = np.array([100.0, 60.0, 30.0, 10.0])
    estimator, missed = NoiseEstimator(), []
    for step in range(1200):
        phi = 30 * 1.3 ** (step / 100)
        estimator.observe(b, *gradients(rng, b, phi))
        if step >= 300 and step % 20 == 0:
            scale = estimator.scale()
            assert scale is not None
            missed.append(math.log(scale.value / phi))
    assert abs(np.mean(missed)) <= 0.1
    assert np.sqrt(np.mean(np.square(missed))) <= 0.15


def test_a_noise_scale_that_stays_is_told_no_worse_for_it() -> None:
    """The average alone errs by 3.4 % here (root mean square)."""
    b = np.array([100.0, 60.0, 30.0, 10.0])
    missed = []
    for seed in range(6):
        rng, estimator = np.random.default_rng(seed), NoiseEstimator()
        for step in range(900):
            estimator.observe(b, *gradients(rng, b, 300.0))
            if step >= 100 and step % 40 == 0:
                scale = estimator.scale()
                assert scale is not None
                missed.append(math.log(scale.value / 300))
    assert abs(np.mean(missed)) <= 0.02
    assert np.sqrt(np.mean(np.square(missed))) <= 1.1 * 0.034


def test_a_signal_lost_in_noise_gives_a_floor_not_nonsense() -> None:
    rng = np.random.default_rng(3)
    b = np.array([2.0, 2.0])
    estimator = NoiseEstimator()
    for _ in range(60):
        estimator.observe(b, *gradients(rng, b, 1e6))
    scale = estimator.scale()
    assert scale is not None
    assert scale.value > 100
    assert scale.high == math.inf


def test_one_exploding_gradient_does_not_rule() -> None:
    rng = np.random.default_rng(4)
    b = np.array([40.0, 24.0])
    estimator = NoiseEstimator()
    for _ in range(200):
        estimator.observe(b, *gradients(rng, b, 100.0))
    estimator.observe(b, np.array([1e12, 1.0]), 1e11)
    for _ in range(20):
        estimator.observe(b, *gradients(rng, b, 100.0))
    scale = estimator.scale()
    assert scale is not None and 50 <= scale.value <= 200


@pytest.mark.parametrize(
    ("local", "whole"),
    [([math.nan, 1.0], 1.0), ([1.0, 1.0], math.nan), ([-1.0, 1.0], 1.0), ([math.inf, 1.0], 1.0), ([1.0, 1.0], -1.0)],
)
def test_bad_reports_are_skipped_and_counted(local: list[float], whole: float) -> None:
    estimator = NoiseEstimator()
    for _ in range(200):
        estimator.observe(np.array([8.0, 8.0]), np.array(local), whole)
    assert estimator.scale() is None
    assert estimator.state().skipped == 200
    assert estimator.hopeless


def test_one_worker_alone_tells_nothing() -> None:
    assert pooled_estimate(np.array([32.0]), np.array([2.0]), 2.0) is None
    assert pooled_estimate(np.array([32.0, 0.0]), np.array([2.0, 5.0]), 2.0) is None


@given(st.lists(st.tuples(st.floats(0, 1e300), st.floats(0, 1e300), st.floats(0, 1e300)), min_size=1, max_size=60))
def test_whatever_is_reported_the_state_is_json_and_the_scale_is_sane(rows: list[tuple[float, float, float]]) -> None:
    estimator = NoiseEstimator()
    for a, b, whole in rows * 3:
        estimator.observe(np.array([8.0, 24.0]), np.array([a, b]), whole)
    again = NoiseEstimator(NoiseState.model_validate_json(estimator.state().model_dump_json()))
    scale, same = estimator.scale(), again.scale()
    assert scale == same
    if scale is not None:
        assert 0 <= scale.low <= scale.value <= scale.high
        assert math.isfinite(scale.value)


def test_efficiency_is_one_at_the_initial_batch_and_falls() -> None:
    assert efficiency(100, 64, 64) == 1.0
    assert efficiency(100, 128, 64) == pytest.approx(164 / 228)
    assert efficiency(100, 32, 64) > 1
