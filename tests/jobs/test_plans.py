"""Plans: one at a time, acknowledged by all, repeated to who missed it."""

from __future__ import annotations

import pytest

from rex_operator.jobs import SavedState
from rex_operator.planning import PlanDraft, SearchRequest, SearchResult
from rex_worker.protocol import OutOfMemory, Plan, Ready
from tests.jobs.desk import Desk, ended, running, sent


def offer(monkeypatch: pytest.MonkeyPatch, desk: Desk, batch: int) -> PlanDraft:
    """Make the planner of the desk want this batch at its next poll, once."""
    half = batch // 2
    draft = PlanDraft(batch, 1, {"w0": half, "w1": batch - half}, 1.0)
    wishes = [draft]
    monkeypatch.setattr(desk.coordinator.planner, "poll", lambda now: wishes.pop() if wishes else None)
    return draft


def test_a_plan_goes_to_all_members_with_the_next_version(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = running("w0", "w1")
    offer(monkeypatch, desk, 96)
    mail = sent(desk.wait(0.5), Plan)
    assert {name: plans[0].version for name, plans in mail.items()} == {"w0": 2, "w1": 2}
    assert desk.coordinator.view().unacked == ("w0", "w1")


def test_the_planner_is_not_asked_again_until_all_run_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = running("w0", "w1")
    offer(monkeypatch, desk, 96)
    desk.wait(0.5)
    offer(monkeypatch, desk, 128)
    assert not sent(desk.wait(30))
    desk.switch("w0", step=9)
    assert not sent(desk.wait(30))
    started: list[tuple[int, int, int]] = []
    monkeypatch.setattr(
        desk.coordinator.planner,
        "plan_running",
        lambda version, generation, draft, step, now: started.append((version, generation, step)),
    )
    desk.switch("w1", step=9)
    assert started == [(2, 1, 9)]
    assert sent(desk.wait(0.5), Plan)


def test_a_step_under_a_plan_is_as_good_as_its_acknowledgement() -> None:
    desk = Desk()
    desk.target("w0", "w1")
    desk.ready("w0", "w1")
    desk.run("w0", "w1", step=1)
    assert not desk.coordinator.view().unacked


def test_one_that_reconnects_hears_what_it_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = running("w0", "w1")
    desk.hang_up("w1")
    offer(monkeypatch, desk, 96)
    assert sent(desk.wait(0.5)).keys() == {"w0"}
    (plan,) = sent(desk.hello("w1", generation=1, version=1, step=3))["w1"]
    assert isinstance(plan, Plan)
    assert plan.version == 2


def test_one_that_missed_the_membership_hears_it_and_then_the_newer_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = running("w0", "w1")
    offer(monkeypatch, desk, 96)
    desk.wait(0.5)
    kinds = [message.kind for message in sent(desk.hello("w1"))["w1"]]
    assert kinds == ["Membership", "Plan"]


def test_a_plan_nobody_made_is_counted_and_not_believed() -> None:
    desk = running("w0", "w1")
    desk.say("w0", desk.steps("w0", 1, plan_version=77))
    assert desk.coordinator.view().counters["unknown-plan"] == 1
    assert desk.coordinator.view().step == 0


def test_out_of_memory_counts_once_per_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = running("w0", "w1")
    asked: list[int] = []

    def learn(worker_id: str, local_batch: int, now: float) -> PlanDraft:
        asked.append(local_batch)
        return PlanDraft(64, 2, {"w0": 32, "w1": 32}, 1.0)

    monkeypatch.setattr(desk.coordinator.planner, "out_of_memory", learn)
    trouble = OutOfMemory(generation=1, plan_version=1, local_batch=32)
    first = sent(desk.say("w0", trouble), Plan)
    assert first["w1"][0].accumulation == 2
    assert not desk.say("w0", trouble)
    assert asked == [32]


def test_out_of_memory_that_no_plan_can_help_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = running("w0", "w1", batch={"initial": 8192, "min": 8192, "max": 8192}, planner={"policy": "rex"})
    end = None
    for version in range(1, 40):
        plan = desk.plan
        share = plan.local_batches["w0"] // plan.accumulation
        if share <= 1 or end is not None:
            break
        trouble = OutOfMemory(generation=1, plan_version=plan.version, local_batch=1)
        end = ended(desk.say("w0", trouble)) or end
        desk.switch("w0", "w1", step=version)
    assert end is not None
    assert not end.success
    assert end.reason == "OutOfMemory"


def test_a_search_that_failed_does_not_keep_the_planner_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = running("w0", "w1")
    told: list[SearchResult] = []
    monkeypatch.setattr(desk.coordinator.planner, "complete", lambda request, result, now: told.append(result))
    request = object.__new__(SearchRequest)
    object.__setattr__(request, "number", 7)
    desk.coordinator.search_finished(request, None, desk.now)
    (result,) = told
    assert (result.number, result.choice) == (7, None)


def test_plans_tell_what_rates_and_schedules_are_meant_for() -> None:
    desk = running("w0", "w1", learningRate={"scaling": "linear", "warmupSamples": 1000})
    assert (desk.plan.initial_batch, desk.plan.warmup_samples, desk.plan.learning_rate_factor) == (64, 1000, 1.0)


def test_the_kind_of_optimizer_that_workers_tell_of_is_known_also_after_a_restart() -> None:
    desk = Desk()
    desk.target("w0", "w1")
    for name in ("w0", "w1"):
        desk.hello(name)
        desk.say(name, Ready(adaptive=True))
    again = Desk(desk.coordinator.saved())
    assert again.coordinator.planner.state().adaptive
    assert again.plan == desk.plan


def test_that_all_must_run_equally_many_passes_is_known_also_after_a_restart() -> None:
    desk = Desk()
    desk.target("w0", "w1")
    for name in ("w0", "w1"):
        desk.hello(name)
        desk.say(name, Ready(equal_passes=True))
    assert desk.coordinator.planner.state().equal_passes
    assert Desk(desk.coordinator.saved()).coordinator.planner.state().equal_passes


def test_own_passes_go_to_the_workers_and_survive_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = running("w0", "w1")
    draft = PlanDraft(96, 4, {"w0": 64, "w1": 32}, 1.0, passes={"w1": 1})
    wishes = [draft]
    monkeypatch.setattr(desk.coordinator.planner, "poll", lambda now: wishes.pop() if wishes else None)
    mail = sent(desk.wait(0.5), Plan)
    assert {name: [plan.passes_of(worker) for worker in ("w0", "w1")] for name, (plan,) in mail.items()} == {
        "w0": [4, 1],
        "w1": [4, 1],
    }
    assert {row.worker_id: row.passes for row in desk.coordinator.view().workers} == {"w0": 4, "w1": 1}
    again = Desk(SavedState.model_validate_json(desk.coordinator.saved().model_dump_json()))
    assert again.plan.passes == {"w1": 1}
    assert again.coordinator.group.draft is not None and again.coordinator.group.draft.passes == {"w1": 1}
