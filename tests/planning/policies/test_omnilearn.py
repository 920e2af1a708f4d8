"""OmniLearn's controller does what its paper's code does: gain, dead-band, clamps, correction (the HL1-HL8 recipe)."""

from __future__ import annotations

import numpy as np
import pytest

from rex_operator.planning.policies.omnilearn import DEAD_BAND, controlled

HL = {1: (12, 12, 12, 12), 2: (12, 12, 8, 16), 4: (9, 8, 6, 25), 8: (6, 6, 4, 32)}
"""Cores of the four containers of the published emulation, by heterogeneity level (largest over smallest)."""
BATCH = 4 * 64


@pytest.mark.parametrize("level", HL)
@pytest.mark.parametrize("fixed", [0.0, 2.0])
def test_at_each_level_of_the_recipe_it_comes_to_rest_inside_the_dead_band(level: int, fixed: float) -> None:
    cores = np.array(HL[level], dtype=float)
    shares = np.full(4, BATCH / 4)
    for _ in range(20):
        shares = controlled(shares, fixed + shares / cores, least=1, most=np.inf)
        assert shares.sum() == pytest.approx(BATCH)
    times = fixed + shares / cores
    assert np.array_equal(controlled(shares, times, least=1, most=np.inf), shares)
    assert np.abs(times / times.mean() - 1).max() <= DEAD_BAND + 1e-9


@pytest.mark.parametrize("fixed", [0.0, 0.5, 2.0])
def test_each_step_covers_the_share_of_time_that_hangs_on_the_batch(fixed: float) -> None:
    """With t = a + c b a step covers c b / (a + c b) of the move to where the time is the mean (algorithms, 4)."""
    shares, each = np.array([64.0, 64.0]), np.array([0.5, 1.5])
    times = fixed * 32 + each * shares
    needed = (times.mean() - times) / each
    moved = shares * times.mean() / times - shares
    assert moved / needed == pytest.approx(each * shares / times)
    both = controlled(shares, times, least=1, most=np.inf)
    assert both.sum() == pytest.approx(128), "the correction brings the batch back"


def test_the_fixed_point_is_where_times_are_equal_and_it_is_reached() -> None:
    each, fixed = np.array([0.5, 1.0, 1.0, 2.0]), 5.0
    shares = np.full(4, 64.0)
    spreads = []
    for _ in range(12):
        times = fixed + each * shares
        spreads.append(np.ptp(times) / times.mean())
        shares = controlled(shares, times, least=1, most=np.inf)
    assert spreads[0] > 0.8
    assert spreads[-1] < 2 * DEAD_BAND
    equal = shares * 0 + np.array([128, 64, 64, 32]) * BATCH / 288
    level = fixed + each * equal
    assert np.array_equal(controlled(equal, np.full(4, level.mean()), least=1, most=np.inf), equal), (
        "equal times move nothing"
    )


def test_inside_the_dead_band_nothing_moves() -> None:
    shares = np.full(4, 64.0)
    assert np.array_equal(controlled(shares, np.array([0.9, 1.0, 1.0, 1.1])), shares)


def test_clamps_of_the_published_code_and_what_they_cut_off_is_spread() -> None:
    shares = np.full(4, 64.0)
    moved = controlled(shares, np.array([0.2, 1.0, 1.0, 1.8]))
    assert moved.sum() == pytest.approx(BATCH)
    assert moved[0] - moved[1] == pytest.approx(96 - 64), "clamped; what is spread and corrected is the same for all"
    assert moved[3] - moved[1] == pytest.approx(64 / 1.8 - 64)
