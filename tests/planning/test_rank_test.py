"""The rank test gives the exact p-value for small samples, ties included, and one fixed method for large ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rex_operator.planning.statistics import hodges_lehmann, mann_whitney, smallest_p, usable


def sample(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


small = st.lists(st.integers(1, 5).map(float), min_size=1, max_size=5)


@given(small, small)
def test_small_samples_are_enumerated_exactly_with_ties(x: list[float], y: list[float]) -> None:
    pooled, n = np.array(x + y), len(x)
    ranks = stats.rankdata(pooled)
    observed = ranks[:n].sum()
    sums = [sum(ranks[i] for i in chosen) for chosen in itertools.combinations(range(len(pooled)), n)]
    test = mann_whitney(np.array(x), np.array(y))
    if len(set(pooled)) > 1:
        assert test.p_less == pytest.approx(np.mean([s <= observed + 1e-9 for s in sums]))
        assert test.p_greater == pytest.approx(np.mean([s >= observed - 1e-9 for s in sums]))


@given(small, small)
def test_swapping_the_samples_swaps_the_sides(x: list[float], y: list[float]) -> None:
    one, other = mann_whitney(np.array(x), np.array(y)), mann_whitney(np.array(y), np.array(x))
    assert one.p_less == pytest.approx(other.p_greater)
    assert one.a12 == pytest.approx(1 - other.a12)


def test_large_samples_use_the_normal_approximation_with_both_corrections() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=30), rng.normal(0.5, size=40)
    expected = stats.mannwhitneyu(x, y, use_continuity=True, alternative="less", method="asymptotic").pvalue
    assert mann_whitney(x, y).p_less == pytest.approx(expected)


def test_c_150_the_smallest_p_that_can_be_reached_is_known() -> None:
    assert 2 * smallest_p(3, 3) == pytest.approx(0.10)
    assert 2 * smallest_p(4, 4) == pytest.approx(0.0286, abs=1e-4)
    assert 2 * smallest_p(1, 1) == 1.0
    assert smallest_p(0, 5) == 1.0
    assert mann_whitney(sample(1, 2, 3), sample(4, 5, 6)).p_less == pytest.approx(smallest_p(3, 3))


@pytest.mark.parametrize("kind", [int, float])
def test_c_151_equal_constants_do_not_differ_and_different_ones_do(kind: type) -> None:
    fives, sixes = np.array([kind(5)] * 10, dtype=float), np.array([kind(6)] * 10, dtype=float)
    same, apart = mann_whitney(fives, fives), mann_whitney(fives, sixes)
    assert (same.p_less, same.p_greater, same.a12) == (1.0, 1.0, 0.5)
    assert 2 * apart.p_less == pytest.approx(1.6e-5, rel=0.02)
    assert apart.a12 == 1.0


def test_c_153_what_is_not_finite_and_positive_is_removed_and_counted() -> None:
    kept, removed = usable([1.0, float("nan"), float("inf"), -float("inf"), 0.0, -2.0, 3.0])
    assert kept.tolist() == [1.0, 3.0]
    assert removed == 5
    with pytest.raises(ValueError, match="finite"):
        mann_whitney(sample(1, float("nan")), sample(1, 2))
    with pytest.raises(ValueError, match="at least one"):
        mann_whitney(sample(), sample(1, 2))


def test_c_154_a_pair_has_the_same_p_whatever_else_is_tested() -> None:
    rng = np.random.default_rng(2)
    pairs = [(rng.integers(1, 9, 12).astype(float), rng.normal(5, 2, 15)) for _ in range(20)]
    alone = [mann_whitney(x, y).p_less for x, y in pairs]
    order = rng.permutation(len(pairs))
    together = {int(i): mann_whitney(*pairs[int(i)]).p_less for i in order}
    assert [together[i] for i in range(len(pairs))] == alone


@pytest.mark.parametrize(
    ("x", "y", "p_less", "p_greater"),
    [
        # counted by hand: of C(5,2) = 10 rank sums of two, {1,2} is the lowest
        (sample(1, 2), sample(3, 4, 5), 1 / 10, 10 / 10),
        # mid-ranks 1, 2.5, 2.5, 4: sums of pairs 3.5 3.5 5 5 6.5 6.5; observed 1 + 2.5
        (sample(1, 2), sample(2, 3), 2 / 6, 6 / 6),
        # ranks 1..6, observed 1+3+4 = 8; sums of three <= 8: 6, 7, 8, 8; >= 8: 18
        (sample(1, 3, 4), sample(2, 5, 6), 4 / 20, 18 / 20),
    ],
)
def test_c_156_golden_values(x: np.ndarray, y: np.ndarray, p_less: float, p_greater: float) -> None:
    test = mann_whitney(x, y)
    assert test.p_less == pytest.approx(p_less)
    assert test.p_greater == pytest.approx(p_greater)


def test_the_shift_is_the_median_difference_and_its_interval_covers_it() -> None:
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(300):
        shift = hodges_lehmann(rng.normal(1.0, 1, 20), rng.normal(0.0, 1, 20))
        assert shift.low <= shift.estimate <= shift.high
        inside += shift.low <= 1.0 <= shift.high
    assert 0.91 <= inside / 300 <= 0.99
