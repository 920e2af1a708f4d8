"""The end of a job: reached once, by all, and never before the last checkpoint is safe."""

from __future__ import annotations

from rex_worker.protocol import Checkpointed, Left, Ready, Stop
from tests.jobs.desk import Desk, ended, memberships, running, saves, sent

CHECKPOINT = {"path": "job", "everySteps": 10}


def final(desk: Desk, step: int = 9) -> Checkpointed:
    return Checkpointed(generation=desk.plan.generation, step=step, samples=step, final=True)


def test_succeeds_when_all_have_finished() -> None:
    desk = running("w0", "w1")
    assert ended(desk.finish("w0")) is None
    assert desk.phase == "Finishing"
    end = ended(desk.finish("w1"))
    assert end is not None
    assert end.success
    assert desk.phase == "Succeeded"


def test_c_083_success_waits_for_the_final_checkpoint_of_rank_0() -> None:
    desk = running("w0", "w1", checkpoint=CHECKPOINT)
    desk.finish("w1")
    desk.gone("w1", "exit code 0")
    assert ended(desk.wait(400)) is None
    assert desk.phase == "Finishing"
    assert not memberships(desk.wait(1)), "nobody forms another group for one that saves"
    desk.say("w0", final(desk))
    end = ended(desk.finish("w0"))
    assert end is not None
    assert end.success


def test_a_final_checkpoint_that_never_came_starts_the_tail_again() -> None:
    desk = running("w0", "w1", checkpoint=CHECKPOINT)
    desk.finish("w1")
    desk.gone("w0")
    assert desk.phase == "Recovering"
    desk.target("w0", "w1", w0="b0", w1="b1")
    for name, life in (("w0", "b0"), ("w1", "b1")):
        desk.hello(name, life)
        actions = desk.say(name, Ready(), life)
    assert memberships(actions)


def test_one_that_dies_after_the_others_finished_does_not_spoil_it() -> None:
    desk = running("w0", "w1")
    desk.finish("w0")
    end = ended(desk.gone("w1"))
    assert end is not None
    assert end.success


def test_terminal_is_final() -> None:
    desk = running("w0", "w1")
    desk.coordinator.fail("BackoffLimitExceeded", "restarts used up", desk.now)
    before = desk.coordinator.saved()
    late = desk.finish("w0", "w1") + desk.target("w0", "w1", "w2") + desk.wait(20)
    late += desk.coordinator.stop("too late", desk.now) + desk.coordinator.fail("Other", "again", desk.now)
    assert late == []
    assert desk.phase == "Failed"
    assert desk.coordinator.view().reason == "BackoffLimitExceeded"
    assert desk.coordinator.saved() == before


def test_who_connects_after_the_end_is_sent_home() -> None:
    desk = running("w0", "w1")
    desk.coordinator.fail("DeadlineExceeded", "too long", desk.now)
    (stop,) = sent(desk.hello("w5"))["w5"]
    assert isinstance(stop, Stop)


def test_stop_saves_and_leaves_without_ending_the_job() -> None:
    desk = running("w0", "w1")
    actions = desk.coordinator.stop("interrupted", desk.now)
    assert saves(actions)
    assert all(message.checkpoint for messages in sent(actions, Stop).values() for message in messages)
    assert desk.phase == "Stopping"
    for name in ("w0", "w1"):
        assert ended(desk.say(name, Left(reason="stopped"))) is None
    assert desk.phase == "Stopped"


def test_checkpoints_only_grow_and_bind_the_next_generation() -> None:
    desk = running("w0", "w1", "w2", checkpoint=CHECKPOINT)
    for step in (20, 10):
        desk.say("w0", Checkpointed(generation=1, step=step, samples=step))
    (second,) = memberships(desk.gone("w2"))
    assert second.min_step == 20
    assert desk.coordinator.saved().checkpoint_step == 20
