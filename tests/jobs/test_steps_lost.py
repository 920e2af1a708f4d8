"""C-096: what a change of the group cost is told: nothing when planned, at most a checkpoint interval when not."""

from __future__ import annotations

from rex_operator.jobs import SavedState
from rex_worker.protocol import Ack, Leaving, Ready
from tests.jobs.desk import Desk, running


def trained(step: int) -> Desk:
    desk = running("w0", "w1", "w2")
    desk.run("w0", "w1", "w2", step=step)
    return desk


def test_c_096_a_planned_change_loses_no_step() -> None:
    desk = trained(40)
    desk.say("w2", Leaving())
    desk.target("w0", "w1")
    desk.switch("w0", "w1", step=42)
    desk.run("w0", "w1", step=42)
    assert desk.coordinator.view().steps_lost == 0


def test_c_096_a_step_that_only_the_dead_had_applied_is_lost() -> None:
    desk = trained(40)
    desk.gone("w2")
    desk.switch("w0", "w1", step=40)
    assert desk.coordinator.view().steps_lost == 1


def test_c_096_the_loss_of_all_costs_what_the_checkpoint_lacks_and_is_counted_once() -> None:
    desk = trained(40)
    for name in ("w0", "w1", "w2"):
        desk.gone(name)
    desk.target("w0", "w1", "w2", w0="j0", w1="j1", w2="j2")
    for name in ("w0", "w1", "w2"):
        desk.hello(name, life=f"j{name[1:]}")
    for name in ("w0", "w1", "w2"):
        desk.say(name, Ready(), life=f"j{name[1:]}")
    plan = desk.plan
    for name in ("w0", "w1", "w2"):
        desk.say(name, Ack(generation=plan.generation, plan_version=plan.version, step=21), life=f"j{name[1:]}")
    assert desk.coordinator.view().steps_lost == 20
    saved = SavedState.model_validate_json(desk.coordinator.saved().model_dump_json())
    later = Desk(saved)
    later.target("w0", "w1", "w2", w0="j0", w1="j1", w2="j2")
    later.hello("w0", life="j0", generation=plan.generation, version=plan.version, step=30)
    later.say("w0", Ack(generation=plan.generation, plan_version=plan.version, step=21), life="j0")
    assert later.coordinator.view().steps_lost == 20, "workers repeat to a new operator what they told the old one"
