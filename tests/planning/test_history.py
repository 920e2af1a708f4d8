"""What was measured of a team is kept, ages, and is translated when the team changes."""

from __future__ import annotations

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
