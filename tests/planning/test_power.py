"""Watts from how well a device is filled, joules from watts and times, and a transfer that a few points suffice for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rex_operator.planning.curves import Point, StepTimeCurve
from rex_operator.planning.power import EXPONENT, PEAK, DevicePower, Draw, TeamPower, Transfer
from rex_operator.planning.split import WorkerModel

SIZES = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)
CURVE = StepTimeCurve.fit([Point(b, 0.02 + 0.001 * b, 1e-6) for b in SIZES])
DEVICE = DevicePower(idle=30.0, limit=250.0)


def test_filling_is_the_rate_over_the_highest_rate() -> None:
    draw = Draw(DEVICE, CURVE)
    assert draw.filling([20.0]) == pytest.approx([0.5], rel=0.05)  # half of its time is fixed cost
    assert draw.filling([1e6]) == pytest.approx([1.0], rel=0.02)
    assert (np.diff(draw.filling(np.geomspace(1, 4096, 50))) >= -1e-9).all()


def test_watts_lie_between_idle_and_limit_as_the_constants_say() -> None:
    draw = Draw(DEVICE, CURVE)
    assert draw.watts([1e7]) == pytest.approx([30 + 220 * PEAK], rel=0.02)
    half = draw.filling([20.0])[0]
    assert draw.watts([20.0]) == pytest.approx([30 + 220 * PEAK * half**EXPONENT])
    assert (draw.watts(np.geomspace(0.01, 1e5, 40)) >= 30).all()


def test_joules_are_watts_times_seconds_of_computing_and_of_waiting() -> None:
    models = [WorkerModel("w0", CURVE), WorkerModel("w1", CURVE)]
    power = TeamPower(models, [DEVICE, DevicePower(10.0, 70.0)])
    drawn = power.joules(np.array([200.0, 60.0]), [[1.0, 0.25]], [1.5])
    assert drawn == pytest.approx([200 * 1.0 + 30 * 0.5 + 60 * 0.25 + 10 * 1.25])


def test_a_worker_slower_than_its_kind_is_filled_as_its_kind_is() -> None:
    models = [WorkerModel("w0", CURVE), WorkerModel("w1", CURVE, slowness=2.0)]
    busy = TeamPower(models, [DEVICE, DEVICE]).busy([[32, 32], [64, 64]], 1)
    assert busy[:, 0] == pytest.approx(busy[:, 1])


def test_measured_watts_come_before_the_model() -> None:
    told = DevicePower(30.0, 250.0, ((16.0, 200.0), (256.0, 215.0)))
    modelled, measured = Draw(DEVICE, CURVE), Draw(told, CURVE)
    assert measured.watts([16.0, 256.0]) == pytest.approx([200.0, 215.0], rel=0.04)
    assert abs(measured.watts([64.0])[0] - 208) < abs(modelled.watts([64.0])[0] - 208) / 3


def test_without_points_the_reference_is_kept_and_one_point_shifts_it() -> None:
    shape = np.array([40.0, 80.0, 160.0])
    sizes = np.array([8.0, 16.0, 32.0])
    assert Transfer.fit([], [], [])(sizes, shape) == pytest.approx(shape)
    assert Transfer.fit([16.0], [80.0], [120.0])(sizes, shape) == pytest.approx(1.5 * shape, rel=0.01)


def test_what_no_law_explains_is_still_met_where_it_was_measured() -> None:
    sizes, shape = np.array([8.0, 16.0, 32.0, 64.0]), np.array([40.0, 80.0, 160.0, 200.0])
    odd = np.array([60.0, 50.0, 300.0])
    found = Transfer.fit(sizes[:3], shape[:3], odd)(sizes, shape)
    assert found[:3] == pytest.approx(odd)
    assert (found > 0).all()


@given(st.floats(0.2, 5.0), st.floats(0.6, 1.4))
def test_a_few_points_find_any_such_law_again(scale: float, exponent: float) -> None:
    reference = np.array([20.0, 55.0, 110.0, 190.0])
    new = scale * reference**exponent
    sizes = np.array([4.0, 16.0, 64.0, 256.0])
    found = Transfer.fit(sizes[[0, 3]], reference[[0, 3]], new[[0, 3]])(sizes, reference)
    assert found == pytest.approx(new, rel=0.01)


def test_points_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="2 points need as many sizes and values of the reference, not 2 and 1"):
        Transfer.fit([1.0, 2.0], [1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="positive and finite"):
        Transfer.fit([1.0], [1.0], [float("nan")])
