"""The first group waits for the others, but not for ever, and never forms below the minimum."""

from __future__ import annotations

from tests.jobs.desk import Desk, memberships, saves, sent


def test_forms_at_once_when_all_are_ready() -> None:
    desk = Desk()
    desk.target("w0", "w1", "w2")
    assert not memberships(desk.ready("w2", "w0"))
    actions = desk.ready("w1")
    (first,) = memberships(actions)
    assert [member.worker_id for member in first.members] == ["w0", "w1", "w2"]
    assert first.generation == 1
    assert first.plan.version == 1
    assert sorted(sent(actions)) == ["w0", "w1", "w2"]
    assert desk.phase == "Running"


def test_waits_five_seconds_for_the_slow_one_then_goes_without_it() -> None:
    desk = Desk()
    desk.target("w0", "w1", "w2")
    desk.ready("w0", "w1")
    assert not memberships(desk.wait(4.5))
    (first,) = memberships(desk.wait(1.0))
    assert [member.worker_id for member in first.members] == ["w0", "w1"]


def test_never_below_the_minimum() -> None:
    desk = Desk(workers={"min": 3, "max": 8})
    desk.target("w0", "w1", "w2")
    desk.ready("w0", "w1")
    assert not memberships(desk.wait(60))
    assert desk.phase == "Pending"


def test_each_pool_has_its_own_minimum() -> None:
    pools = [{"name": "a100", "maxWorkers": 8}, {"name": "t4", "minWorkers": 1, "maxWorkers": 8}]
    desk = Desk(pools=pools)
    desk.target("w0", "w1")
    desk.ready("w0", "w1")
    assert not memberships(desk.wait(60))


def test_what_is_decided_is_saved_before_it_is_sent() -> None:
    desk = Desk()
    desk.target("w0", "w1")
    actions = desk.ready("w0", "w1")
    assert saves(actions)
    kinds = [type(action).__name__ for action in actions]
    assert kinds.index("Save") < kinds.index("Send")


def test_more_workers_than_the_largest_batch_are_left_out() -> None:
    desk = Desk(batch={"initial": 2, "min": 2, "max": 2})
    desk.target("w0", "w1", "w2")
    (first,) = memberships(desk.ready("w0", "w1", "w2"))
    assert [member.worker_id for member in first.members] == ["w0", "w1"]


def test_c_118_more_workers_than_get_their_least_share_are_left_out() -> None:
    desk = Desk(batch={"initial": 8, "min": 8, "max": 11, "minShare": 4})
    desk.target("w0", "w1", "w2")
    (first,) = memberships(desk.ready("w0", "w1", "w2"))
    assert [member.worker_id for member in first.members] == ["w0", "w1"]
    assert desk.plan.local_batches == {"w0": 4, "w1": 4}
