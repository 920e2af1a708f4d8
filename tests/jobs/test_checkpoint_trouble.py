"""A checkpoint that fails harms no training, but people must see it before they need it."""

from __future__ import annotations

from rex_worker.protocol import Checkpointed, CheckpointFailed
from tests.jobs.desk import Desk, running, saves

CHECKPOINT = {"path": "job", "everySteps": 10}


def failed(desk: Desk, step: int) -> CheckpointFailed:
    return CheckpointFailed(generation=desk.plan.generation, step=step, message="OSError: No space left on device")


def safe(desk: Desk, step: int) -> Checkpointed:
    return Checkpointed(generation=desk.plan.generation, step=step, samples=step)


def test_it_is_shown_until_a_newer_one_is_safe() -> None:
    desk = running("w0", "w1", checkpoint=CHECKPOINT)
    desk.say("w0", failed(desk, 10))
    trouble = desk.coordinator.view().checkpoint_trouble
    assert trouble == "checkpoint of step 10 failed: OSError: No space left on device (none is safe yet)"
    desk.say("w0", safe(desk, 20))
    assert desk.coordinator.view().checkpoint_trouble == ""
    desk.say("w0", failed(desk, 30))
    assert "step 30 failed" in desk.coordinator.view().checkpoint_trouble
    assert "the newest safe one is of step 20" in desk.coordinator.view().checkpoint_trouble
    assert desk.phase == "Running"


def test_c_113_a_damaged_one_binds_the_next_generation_no_longer() -> None:
    desk = running("w0", "w1", checkpoint=CHECKPOINT)
    desk.say("w0", safe(desk, 20))
    damaged = CheckpointFailed(generation=desk.plan.generation, step=20, message="part is not right", resumed=10)
    actions = desk.say("w0", damaged)
    assert saves(actions) and desk.coordinator.saved().checkpoint_step == 10
    assert desk.coordinator.view().checkpoint_trouble == (
        "checkpoint of step 20 cannot be used: part is not right; training went on from that of step 10"
    )
    desk.say("w0", safe(desk, 12))
    assert desk.coordinator.saved().checkpoint_step == 12 and not desk.coordinator.view().checkpoint_trouble
    desk.say("w0", safe(desk, 30))
    desk.say("w0", damaged)  # told again, late
    assert desk.coordinator.saved().checkpoint_step == 30


def test_one_that_is_told_late_shows_nothing() -> None:
    desk = running("w0", "w1", checkpoint=CHECKPOINT)
    desk.say("w0", safe(desk, 20))
    desk.say("w0", failed(desk, 10))
    assert desk.coordinator.view().checkpoint_trouble == ""
