"""A step-time curve is positive and monotone whatever was measured, exact for lines, and sober outside the data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rex_operator.planning.curves import Point, StepTimeCurve
from rex_operator.planning.devices import Devices, Sighting
from rex_operator.planning.types import WorkerInfo

SIZES = np.geomspace(0.5, 4096, 200)
# Step times of one public profile (cifar10, 16 nodes x 16, local batch 32..129): they fall where they should rise.
UNRULY = [(32, 0.172), (45, 0.227), (64, 0.206), (91, 0.201), (129, 0.188)]

points = st.lists(
    st.tuples(st.floats(0.5, 5000), st.floats(1e-4, 100), st.floats(1e-6, 1)), min_size=1, max_size=12
).map(lambda rows: [Point(*row) for row in rows])


@given(points)
def test_monotone_positive_and_invertible_for_any_points(measured: list[Point]) -> None:
    curve = StepTimeCurve.fit(measured)
    times = curve.time(SIZES)
    assert (times > 0).all() and np.isfinite(times).all()
    assert (np.diff(times) >= -1e-12).all()
    back = curve.largest(times)
    assert (curve.time(back) <= times * (1 + 1e-6)).all()
    assert (back >= SIZES * (1 - 1e-6)).all(), "the largest size within the time is at least the one that took it"


@given(points)
def test_c_167_outside_it_is_between_flat_and_hardly_worse_than_proportional(measured: list[Point]) -> None:
    curve = StepTimeCurve.fit(measured)
    low, high = curve.sizes[0], curve.sizes[-1]
    assert curve.time(8 * high) / curve.time(high) <= 1 + 1.5 * 7 + 1e-6
    assert curve.time(low / 8) >= curve.time(low) / 8 * (1 - 1e-6), "never faster than in proportion"


@pytest.mark.parametrize("intercept", [0.0, 0.005, 0.05])
def test_a_straight_line_is_continued_as_one(intercept: float) -> None:
    curve = StepTimeCurve.fit([Point(x, intercept + 0.001 * x, 1e-8) for x in (8, 16, 32, 64)])
    for x in (2, 4, 24, 128, 512):
        assert float(curve.time(x)) == pytest.approx(intercept + 0.001 * x, rel=0.04)


def test_two_near_points_do_not_make_a_slope() -> None:
    curve = StepTimeCurve.fit([Point(30, 0.100, 1e-2), Point(33, 0.130, 1e-2)])
    assert float(curve.time(300)) == pytest.approx(0.13 * (1 + 0.8 * (300 / 33 - 1)), rel=0.35)


def test_c_166_repeats_are_merged_and_bad_values_dropped() -> None:
    curve = StepTimeCurve.fit(
        [Point(32, 0.1), Point(64, 0.18), Point(64, 0.2), Point(64, 9.0), Point(128, 0.4), Point(96, math.nan)]
    )
    assert curve.sizes == pytest.approx((32, 64, 128))
    assert curve.seconds[1] == pytest.approx(0.2, rel=0.01)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_c_166_few_points_are_enough(count: int) -> None:
    curve = StepTimeCurve.fit([Point(32 * 2**i, 0.1 * 2**i) for i in range(count)])
    assert float(curve.time(32)) == pytest.approx(0.1, rel=0.01)


def test_c_166_no_usable_point_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        StepTimeCurve.fit([Point(32, math.nan), Point(-1, 0.1), Point(math.inf, 0.1)])


def test_c_168_a_curve_that_falls_is_made_flat_not_wild() -> None:
    curve = StepTimeCurve.fit([Point(x, t) for x, t in UNRULY])
    seconds = curve.time(np.arange(32, 130))
    assert seconds.min() >= 0.172 - 1e-9 and seconds.max() <= 0.227


def test_c_167_the_public_points_give_no_absurd_speed_far_out() -> None:
    curve = StepTimeCurve.fit([Point(x, t) for x, t in UNRULY])
    best = max(x / t for x, t in UNRULY)
    for x in (1024, 4096):
        assert x / float(curve.time(x)) <= 60 * best
    assert curve.trusted()[1] <= 258


@pytest.mark.parametrize("jump", [1.3, 2.0])
def test_a_cliff_is_found_told_and_not_smoothed_away(jump: float) -> None:
    def true(x: float) -> float:
        return (0.01 + 0.001 * x) * (jump if x > 100 else 1)

    sizes = (16, 32, 64, 96, 112, 160, 256)
    curve = StepTimeCurve.fit([Point(x, true(x)) for x in sizes])
    (cliff,) = curve.cliffs
    assert [cliff.low, cliff.high] == pytest.approx([96, 112])
    assert cliff.jump == pytest.approx(jump, rel=0.1)
    for x in sizes:
        assert float(curve.time(x)) == pytest.approx(true(x), rel=0.03)
    assert float(curve.deviation(104)) > 3 * float(curve.deviation(96)), "where in between it lies is not known"


def test_a_lone_slow_point_and_noise_are_no_cliffs() -> None:
    lone = [Point(x, 0.001 * x * (1.6 if x == 64 else 1)) for x in (16, 32, 64, 66.5, 96, 128)]
    assert StepTimeCurve.fit(lone).cliffs == ()
    noisy = [Point(x, 0.001 * x * (1.25 if x > 64 else 1), 0.1**2) for x in (16, 32, 64, 90, 128)]
    assert StepTimeCurve.fit(noisy).cliffs == (), "within the noise of the measurements"


def test_certain_points_count_for_more_than_uncertain_ones() -> None:
    line = [Point(x, 0.01 + 0.001 * x, 1e-6) for x in (16, 32, 128, 256)]
    far, near = (StepTimeCurve.fit([*line, Point(64, 0.1, variance)]) for variance in (0.3**2, 1e-6))
    true = 0.01 + 0.064
    assert abs(math.log(float(far.time(64)) / true)) < 0.03
    assert abs(math.log(float(near.time(64)) / true)) > 0.1


@given(points)
def test_the_doubt_is_told_and_grows_outward(measured: list[Point]) -> None:
    curve = StepTimeCurve.fit(measured)
    doubts = curve.deviation(SIZES)
    assert np.isfinite(doubts).all() and (doubts >= 0).all()
    high = curve.sizes[-1]
    assert float(curve.deviation(64 * high)) >= float(curve.deviation(4 * high)) >= float(curve.deviation(2 * high))


def test_one_point_promises_nothing_about_larger_batches() -> None:
    curve = StepTimeCurve.fit([Point(32, 0.1)])
    assert 0.7 <= curve.above <= 0.9, "mostly proportional"
    assert float(curve.deviation(64)) > 5 * float(curve.deviation(32))


def test_few_points_take_after_the_other_devices_of_the_job() -> None:
    known = StepTimeCurve.fit([Point(x, 0.02 + 0.0002 * x) for x in (8, 16, 32, 64, 128, 256)])
    true = 0.06 + 0.0006 * 256
    alone = StepTimeCurve.fit([Point(64, 0.06 + 0.0006 * 64)])
    helped = StepTimeCurve.fit([Point(64, 0.06 + 0.0006 * 64)], [known])
    assert abs(float(helped.time(256)) / true - 1) < 0.5 * abs(float(alone.time(256)) / true - 1)


def test_many_points_override_what_other_devices_look_like() -> None:
    flat = StepTimeCurve.fit([Point(x, 0.05) for x in (8, 16, 32, 64, 128)])
    own = [Point(x, 0.001 * x) for x in (8, 16, 32, 64, 128)]
    assert StepTimeCurve.fit(own, [flat]).time(48) == pytest.approx(0.048, rel=0.02)


def test_c_167_the_trusted_range_is_a_factor_two() -> None:
    curve = StepTimeCurve.fit([Point(x, 0.001 * x) for x in (32, 64, 129)])
    assert curve.trusted() == pytest.approx((16, 258))


@pytest.mark.parametrize("age", [0.0, 20 * 3600.0])
def test_what_was_measured_long_ago_counts_for_less(age: float) -> None:
    worker = WorkerInfo("w0", "life", "t4")

    def sighting(size: int, factor: float = 1.0) -> Sighting:
        return Sighting(worker, size, factor * (0.01 + 0.001 * size), 1e-6)

    devices = Devices()
    devices.learn([sighting(64, 1.2)], at=0.0, moved=True)
    for size in (16, 32, 128, 256):
        devices.learn([sighting(size)], at=age, moved=True)
    models = devices.models([worker], age)
    assert models is not None
    off = float(models[0].curve.time(64)) / 0.074 - 1
    assert off < 0.05 if age else off > 0.1
