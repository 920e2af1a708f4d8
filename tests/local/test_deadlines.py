"""The time limits of a run, told once and in words that help."""

from __future__ import annotations

from rex_operator.local.deadlines import Deadlines
from tests.jobs.desk import Desk, make_spec, running


def test_pending_names_the_worker_that_never_connected() -> None:
    deadlines = Deadlines(make_spec(pendingDeadlineSeconds=100), None)
    view = Desk().coordinator.view()
    assert deadlines.check(view, ["w0"], 50, 50) is None
    hint = deadlines.check(view, ["w0"], 61, 61)
    assert hint is not None
    assert hint.what == "hint"
    assert deadlines.check(view, ["w0"], 70, 70) is None, "a hint is told once"
    late = deadlines.check(view, ["w0"], 101, 101)
    assert late is not None
    assert (late.what, late.silent) == ("pending", "w0")
    assert "never called rex.init() on w0" in late.message


def test_pending_of_connected_workers_tells_their_states() -> None:
    desk = Desk()
    desk.target("w0", "w1")
    desk.ready("w0")
    desk.hello("w1")
    late = Deadlines(desk.spec, None).check(desk.coordinator.view(), [], 700, 700)
    assert late is not None
    assert "w0 is ready, w1 is connected" in late.message


def test_once_there_was_a_group_nothing_is_pending() -> None:
    desk = running("w0", "w1")
    deadlines = Deadlines(desk.spec, None)
    assert deadlines.check(desk.coordinator.view(), [], 1, 1) is None
    desk.gone("w1")
    assert deadlines.check(desk.coordinator.view(), ["w1"], 10_000, 10_000) is None


def test_the_active_deadline_counts_all_parts_of_a_run_max_seconds_only_this_one() -> None:
    view = running("w0", "w1").coordinator.view()
    spec = make_spec(activeDeadlineSeconds=100)
    active = Deadlines(spec, 50).check(view, [], 10, 101)
    assert active is not None
    assert active.what == "active"
    most = Deadlines(spec, 50).check(view, [], 51, 60)
    assert most is not None
    assert most.what == "max"
