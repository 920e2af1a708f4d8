"""What was measured of a team is kept, ages, and is translated when the team changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rex_operator.planning.curves import Point, StepTimeCurve
from rex_operator.planning.history import History, team_of
from rex_operator.planning.split import WorkerModel
from rex_operator.planning.types import WorkerInfo

CURVE = StepTimeCurve.fit([Point(x, 0.001 * x) for x in (1, 10, 100)])
TWO = team_of([WorkerInfo("a", "1", "t4"), WorkerInfo("b", "1", "t4")])


def models(count: int) -> list[WorkerModel]:
    return [WorkerModel(f"w{i}", CURVE) for i in range(count)]


def history() -> History:
    made = History()
    made.carry_over(None, models(2), 0.0, TWO)
    made.put(64, 1, 0.032, 0.01, at=0.0)
    return made


def test_an_old_measurement_is_less_certain_than_a_new_one() -> None:
    made = history()
    (new,), (old,) = made.measured(0.0), made.measured(3600.0)
    assert new.variance == pytest.approx(1e-4)
    assert old.variance > 20 * new.variance
    assert old.seconds == new.seconds


def test_another_team_gets_the_time_that_its_curves_say() -> None:
    made = history()
    made.carry_over(models(2), models(4), 0.0, "another")
    (measure,) = made.measured(0.0)
    assert measure.seconds == pytest.approx(0.016, rel=0.05)
    assert measure.variance > 1e-3


def test_an_operator_that_starts_anew_goes_on_with_what_was_measured_of_a_team_like_this_one() -> None:
    saved = history().state()
    again, other = History(saved), History(saved)
    again.carry_over([], models(2), 0.0, team_of([WorkerInfo("x", "9", "t4"), WorkerInfo("y", "9", "t4")]))
    assert again.measured(0.0) == history().measured(0.0)
    other.carry_over([], models(2), 0.0, team_of([WorkerInfo("x", "9", "t4"), WorkerInfo("y", "9", "v100")]))
    assert other.measured(0.0) == ()


def slowed(*slowness: float) -> list[WorkerModel]:
    return [replace(model, slowness=value) for model, value in zip(models(len(slowness)), slowness, strict=True)]


def test_a_time_measured_before_a_change_of_speed_is_what_it_would_be_now() -> None:
    made = history()
    made.align(slowed(2.0, 2.0), 0.01)
    (measure,) = made.measured(0.0)
    assert measure.seconds == pytest.approx(0.032 * (0.064 + 0.01) / (0.032 + 0.01), rel=0.05)
    assert 0.05**2 < measure.variance < 0.3**2, "a model's word for it is less certain than a measurement"


def test_a_drift_of_many_small_steps_is_followed_and_speeds_that_come_back_bring_back_the_times() -> None:
    made = history()
    for step in range(40):
        made.align(slowed(1.02 ** (step + 1), 1.02 ** (step + 1)), 0.0)
    (slow,) = made.measured(0.0)
    assert slow.seconds == pytest.approx(0.032 * 1.02**40, rel=0.05)
    made.align(slowed(1.0, 1.0), 0.0)
    (back,) = made.measured(0.0)
    assert back.seconds == pytest.approx(0.032, rel=0.01)


def test_speeds_that_stay_change_nothing() -> None:
    made = history()
    made.align(slowed(1.02, 0.99), 0.0)
    assert made.measured(0.0) == history().measured(0.0)


def test_what_is_put_in_later_is_of_its_own_speeds() -> None:
    made = history()
    made.align(slowed(2.0, 2.0), 0.0)
    made.put(128, 1, 0.128, 0.01, at=0.0)
    made.align(slowed(1.0, 1.0), 0.0)
    assert [m.seconds for m in made.measured(0.0)] == pytest.approx([0.032, 0.064], rel=0.01)


def test_another_team_is_begun_with_at_its_own_speeds() -> None:
    made = history()
    made.carry_over(models(2), slowed(2.0, 2.0), 0.0, "another")
    made.align(slowed(2.0, 2.0), 0.0)
    (measure,) = made.measured(0.0)
    assert measure.seconds == pytest.approx(0.064, rel=0.01)
