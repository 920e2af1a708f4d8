"""A verdict has three answers, and says better or worse only for a difference that is sure and large enough."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import norm

from rex_operator.planning.statistics import autocorrelation_time
from rex_operator.planning.verdict import block_length, judge, look_levels


def steps(rng: np.random.Generator, mean: float, n: int, spread: float = 0.02, rho: float = 0.0) -> np.ndarray:
    noise = rng.normal(size=n + 50)
    for i in range(1, n + 50):
        noise[i] = rho * noise[i - 1] + np.sqrt(1 - rho * rho) * noise[i]
    return mean * np.exp(spread * noise[50:])


@pytest.mark.parametrize(("n", "alpha"), [(3, 0.05), (4, 0.01), (1, 0.05)])
def test_c_150_windows_too_small_to_ever_show_it_cannot_tell(n: int, alpha: float) -> None:
    low, high = np.arange(1, n + 1, dtype=float), np.arange(101, n + 101, dtype=float)
    assert judge(high, low, alpha / 2, 0.02).verdict == "open"
    assert judge(low, high, alpha / 2, 0.02).verdict == "open"


def test_c_151_constants_that_differ_are_told_apart() -> None:
    fives, sixes = np.full(10, 5.0), np.full(10, 6.0)
    assert judge(fives, fives, 0.025, 0.02).verdict == "open"
    assert judge(sixes, fives, 0.025, 0.02).verdict == "better"
    assert judge(fives, sixes, 0.025, 0.02).verdict == "worse"


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_c_153_bad_values_are_not_evidence(share: float) -> None:
    rng = np.random.default_rng(0)
    reference, trial = steps(rng, 1.0, 60), steps(rng, 1.0, 60)
    trial[rng.permutation(60)[: int(60 * share)]] = [np.nan, np.inf, -1.0][int(share * 2)]
    judgement = judge(reference, trial, 0.025, 0.02)
    assert judgement.verdict == "open"
    assert judgement.removed == int(60 * share)


def test_c_153_a_window_that_is_mostly_bad_proves_nothing() -> None:
    rng = np.random.default_rng(0)
    trial = steps(rng, 0.5, 100)
    trial[:60] = np.nan
    assert judge(steps(rng, 1.0, 100), trial, 0.025, 0.02).verdict == "open"


def test_c_160_a_sure_but_tiny_difference_changes_nothing() -> None:
    rng = np.random.default_rng(4)
    judgement = judge(steps(rng, 1.0, 20_000), steps(rng, 0.998, 20_000), 0.025, 0.02)
    assert judgement.evidence is not None and judgement.evidence.p_better < 0.001
    assert judgement.verdict == "open"


@pytest.mark.parametrize(("factor", "verdict"), [(0.95, "better"), (1.05, "worse"), (1.0, "open")])
def test_a_clear_difference_is_found(factor: float, verdict: str) -> None:
    rng = np.random.default_rng(5)
    judgement = judge(steps(rng, 1.0, 80), steps(rng, factor, 80), 0.025, 0.02)
    assert judgement.verdict == verdict
    evidence = judgement.evidence
    assert evidence is not None and evidence.interval is not None
    assert evidence.interval[0] <= evidence.effect <= evidence.interval[1]
    assert evidence.effect == pytest.approx(1 / factor - 1, abs=0.01)


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=30),
    st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=30),
)
@example([1.0, 1.0], [1.0, 1.0, 1.7e308, 1.7e308])
def test_any_input_gives_a_verdict_and_json_without_nan(x: list[float], y: list[float]) -> None:
    judgement = judge(np.array(x, dtype=float), np.array(y, dtype=float), 0.025, 0.02)
    if judgement.evidence is not None:
        json.loads(judgement.evidence.model_dump_json(), parse_constant=lambda name: pytest.fail(name))


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.6, 0.8])
def test_blocks_follow_the_measured_dependence(rho: float) -> None:
    rng = np.random.default_rng(6)
    series = [steps(rng, 1.0, 2000, rho=rho) for _ in range(2)]
    truth = (1 + rho) / (1 - rho)
    assert autocorrelation_time([np.log(s) for s in series]) == pytest.approx(truth, rel=0.25)
    assert block_length(*(np.log(s) for s in series)) == pytest.approx(2 * truth if rho else 1, rel=0.35, abs=2)


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("fraction", [0.3, 0.5, 0.8])
def test_c_158_two_looks_share_one_error_budget(alpha: float, fraction: float) -> None:
    first, second = look_levels(alpha, fraction)
    rng = np.random.default_rng(7)
    early = rng.normal(size=400_000)
    late = np.sqrt(fraction) * early + np.sqrt(1 - fraction) * rng.normal(size=400_000)
    alarms = (early > norm.isf(first)) | (late > norm.isf(second))
    assert alarms.mean() == pytest.approx(alpha / 2, rel=0.06)
    assert max(first, second) < alpha / 2


def test_the_known_levels_of_two_equal_looks() -> None:
    assert look_levels(0.05, 0.5) == pytest.approx((0.0028, 0.0239), abs=2e-4)
    assert look_levels(0.05, 1.0) == (0.025, 0.025)
