"""Expectations are held against what was measured, over all trials that were judged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rex_operator.planning.calibration import Forecast, calibrate, forecast
from tests.cli.test_explain import DECISION

gains = st.floats(-0.9, 9, allow_nan=False)


def test_a_judged_trial_has_both_figures() -> None:
    assert forecast(DECISION) == Forecast(0.348, 0.5, (0.4, 0.6))
    assert forecast(DECISION.model_copy(update={"evidence": None})) is None
    assert forecast(DECISION.model_copy(update={"expectation": None})) is None


def test_nothing_was_forecast() -> None:
    assert calibrate([None, None]) is None


def test_promising_too_much_shows() -> None:
    told = [Forecast(0.30, 0.10, (0.05, 0.15)), Forecast(0.20, 0.19, (0.15, 0.22))]
    found = calibrate([*told, None, Forecast(0.1, 0.0)])
    assert found is not None
    assert (found.trials, found.met, found.told) == (3, 1, 2)
    assert found.bias == pytest.approx(-0.1)
    assert found.error == pytest.approx(0.1)


@given(st.lists(gains, min_size=1, max_size=40), gains)
def test_perfect_forecasts_have_no_error_and_a_constant_slip_is_the_bias(expected: list[float], slip: float) -> None:
    perfect = calibrate(Forecast(e, e, (e - 0.01, e + 0.01)) for e in expected)
    assert perfect is not None
    assert (perfect.bias, perfect.error, perfect.met) == (0, 0, len(expected))
    slipped = calibrate(Forecast(e, e + slip) for e in expected)
    assert slipped is not None
    assert slipped.bias == pytest.approx(slip, abs=1e-9)
    assert slipped.error == pytest.approx(abs(slip), abs=1e-9)
