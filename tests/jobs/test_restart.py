"""A new coordinator goes on where the last one was killed, and disturbs nobody who trains."""

from __future__ import annotations

import json

from rex_operator.jobs import MAX_SAVED_BYTES, SavedState
from tests.jobs.desk import Desk, memberships, running, sent


def restarted(desk: Desk) -> Desk:
    """Another operator, which knows only what was written."""
    text = desk.coordinator.saved().model_dump_json()
    assert len(text) < MAX_SAVED_BYTES
    later = Desk(SavedState.model_validate_json(text))
    later.target("w0", "w1", "w2")
    return later


def test_a_group_that_trains_on_is_taken_up_as_it_is() -> None:
    desk = running("w0", "w1", "w2")
    later = restarted(desk)
    actions = []
    for name in ("w0", "w1", "w2"):
        actions += later.hello(name, generation=1, version=1, step=7)
    actions += later.wait(60)
    assert not sent(actions)
    assert later.phase == "Running"
    assert not later.coordinator.view().unacked


def test_nobody_counts_as_lost_for_thirty_seconds() -> None:
    later = restarted(running("w0", "w1", "w2"))
    later.hello("w0", generation=1, version=1)
    later.hello("w1", generation=1, version=1)
    assert not memberships(later.wait(29))
    assert len(memberships(later.wait(15))) == 1


def test_unless_it_is_known_to_be_dead() -> None:
    later = restarted(running("w0", "w1", "w2"))
    for name in ("w0", "w1"):
        later.hello(name, generation=1, version=1)
    (second,) = memberships(later.gone("w2"))
    assert [member.worker_id for member in second.members] == ["w0", "w1"]


def test_what_was_sent_but_not_saved_is_never_numbered_again() -> None:
    later = restarted(running("w0", "w1", "w2"))
    later.hello("w0", generation=4, version=9)
    later.hello("w1", generation=4, version=9)
    actions = later.hello("w2", generation=3, version=8)
    (fresh,) = memberships(actions)
    assert fresh.generation == 5
    assert fresh.plan.version == 10
    assert len(fresh.members) == 3


def test_a_worker_that_missed_the_membership_is_told_again() -> None:
    later = restarted(running("w0", "w1", "w2"))
    (message,) = sent(later.hello("w1"))["w1"]
    assert message.kind == "Membership"
    assert message.generation == 1


def test_without_any_state_numbers_are_learned_from_the_workers() -> None:
    desk = Desk()
    desk.target("w0", "w1")
    desk.hello("w0", generation=6, version=31, step=100)
    (fresh,) = memberships(desk.hello("w1", generation=6, version=31, step=100))
    assert fresh.generation == 7
    assert fresh.plan.version == 32


def test_a_state_that_knows_of_no_own_passes_is_taken_up() -> None:
    """As an operator before them has saved it."""
    saved = json.loads(running("w0", "w1", "w2").coordinator.saved().model_dump_json())
    del saved["plan"]["passes"], saved["planner"]["equal_passes"]
    later = Desk(SavedState.model_validate_json(json.dumps(saved)))
    assert later.plan.passes == {} and later.plan.version == 1
    assert later.coordinator.group.draft is not None and later.coordinator.group.draft.passes == {}


def many(count: int) -> Desk:
    return running(
        *[f"w{i}" for i in range(count)],
        workers={"min": 2, "max": 1024},
        pools=[{"name": "a100", "maxWorkers": 1024}],
        batch={"initial": 4096, "max": 8192},
    )


def test_a_large_job_fits_its_map() -> None:
    count = 400
    assert len(many(count).coordinator.saved().model_dump_json()) < MAX_SAVED_BYTES * count / 1024
