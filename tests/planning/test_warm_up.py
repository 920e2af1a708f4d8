"""The first steps after a change do not count, however many they are, and steady ones are not wasted (C-133)."""

from __future__ import annotations

import numpy as np
import pytest

from rex_operator.planning.verdict import judge
from rex_operator.planning.warmup import BLOCK, MOST_BLOCKS, settled_from


def settle(times: np.ndarray, warmup_steps: int = 5, first: int = 100) -> int | None:
    return settled_from(list(range(first, first + len(times))), times, first, warmup_steps)


def steady(n: int, seed: int = 0, spread: float = 0.02) -> np.ndarray:
    return 0.1 * np.exp(spread * np.random.default_rng(seed).normal(size=n))


def test_a_steady_series_counts_right_after_the_fixed_part() -> None:
    assert settle(np.full(40, 0.1)) == 105
    assert settle(np.full(5 + 2 * BLOCK - 1, 0.1)) is None, "two blocks are needed to agree"


@pytest.mark.parametrize("slow", [0, 3, 8, 17, 30])
def test_slow_steps_are_dropped_whatever_their_number(slow: int) -> None:
    times = steady(100)
    times[:slow] *= np.geomspace(50, 1.5, slow) if slow else 1
    begin = settle(times)
    assert begin is not None
    left = BLOCK // 2  # fewer than half a block do not move a block's median, nor the window's
    assert max(5, slow - left) <= begin - 100 <= max(5, slow) + 3 * BLOCK


def test_a_decaying_warm_up_is_not_taken_for_noise() -> None:
    times = 0.1 * (1 + 3 * np.exp(-np.arange(120) / 12))
    begin = settle(times)
    assert begin is not None
    assert times[begin - 100 + BLOCK] < 0.125


@pytest.mark.parametrize("spread", [0.0, 0.02, 0.1, 0.3])
def test_noise_does_not_hold_it_up_for_long(spread: float) -> None:
    begins = [settle(steady(200, seed, spread)) for seed in range(50)]
    assert all(b is not None and b <= 105 + MOST_BLOCKS * BLOCK for b in begins)


def test_a_series_that_never_settles_is_taken_as_it_is_in_the_end() -> None:
    assert settle(0.1 * 1.1 ** np.arange(200.0)) == 105 + MOST_BLOCKS * BLOCK


def test_gaps_do_not_shift_the_fixed_part() -> None:
    steps = [*range(103, 140)]
    assert settled_from(steps, np.full(len(steps), 0.1), 100, 5) == 105


def verdict(warmup_steps: int, disturbed: bool) -> str:
    reference, trial = steady(100, 1), steady(105, 2)
    if disturbed:
        trial[:5] *= 50
    begin = settle(trial, warmup_steps)
    assert begin is not None
    kept = trial[begin - 100 :]
    judgement = judge(reference, kept[:25], 0.025, 0.02)
    assert judgement.evidence is not None
    return f"{judgement.verdict} {judgement.evidence.a12:.2f}"


def test_c_133_five_steps_at_fifty_times_do_not_matter_after_a_change() -> None:
    assert verdict(5, disturbed=True) == verdict(5, disturbed=False)


def test_c_133_without_a_warm_up_they_do() -> None:
    assert verdict(0, disturbed=True) != verdict(0, disturbed=False)
