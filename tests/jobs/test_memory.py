"""Device memory and plans: what does not fit somewhere is never waited for, and no other failure makes a ceiling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rex_operator.api.spec import Failure
from rex_operator.jobs import RunSearch, SavedState, Send, judge
from rex_operator.jobs.coordinator import TAKE_UP_S, TAKE_UP_STEPS
from rex_operator.planning import PlanDraft, run_search
from rex_worker.protocol import EXIT_OUT_OF_MEMORY, OutOfMemory, Plan
from tests.jobs.desk import Desk, running, sent

SEARCHING: dict[str, Any] = {
    "policy": "rex",
    "objective": "throughput",
    "validation": {"minSteps": 20, "warmupSteps": 5},
    "search": {"cooldownSeconds": 0.5},
}


def train(desk: Desk, steps: int, *, start: int) -> list[Plan]:
    """Let both workers run steps under the plan that they run, the planner asked meanwhile; return new plans."""
    plan, plans = desk.plan, []
    rng = np.random.default_rng(start)
    for step in range(start, start + steps):
        for name in ("w0", "w1"):
            seconds = (0.02 + 0.0004 * plan.local_batches[name]) * float(rng.normal(1.0, 0.01))
            desk.say(name, desk.steps(name, step, plan_version=plan.version, compute_s=seconds, step_s=seconds + 0.005))
        for action in desk.wait(0.5):
            if isinstance(action, RunSearch):
                found = run_search(action.request)
                answer = desk.coordinator.search_finished(action.request, found, desk.now)
                plans += [a.message for a in answer if isinstance(a, Send) and isinstance(a.message, Plan)]
            if isinstance(action, Send) and isinstance(action.message, Plan):
                plans.append(action.message)
        if plans:
            break
    return plans


def on_trial() -> tuple[Desk, Plan, Plan]:
    """A desk whose planner has just pushed a larger batch on trial; also the plan that runs meanwhile."""
    desk = running("w0", "w1", planner=SEARCHING)
    before = desk.plan
    trial = train(desk, 400, start=1)[0]
    assert desk.coordinator.planner.decisions[-1].kind == "trial-started"
    assert trial.global_batch > before.global_batch
    return desk, before, trial


def test_c_171_a_plan_that_a_worker_refuses_is_vetoed_before_it_ever_ran() -> None:
    desk, before, trial = on_trial()
    micro = trial.local_batches["w0"]
    refusal = OutOfMemory(generation=1, plan_version=trial.version, local_batch=micro, message="it would need 40 GiB")
    (plan,) = {plan.version: plan for plan in sent(desk.say("w0", refusal), Plan)["w1"]}.values()
    assert plan.version == trial.version + 1
    assert (plan.global_batch, plan.accumulation) == (before.global_batch, before.accumulation)
    veto = desk.coordinator.planner.decisions[-1]
    assert veto.kind == "vetoed" and f"{micro} samples a pass do not fit" in veto.reason
    desk.switch("w0", "w1", step=500)
    later = train(desk, 300, start=501)
    ceilings = [max(plan.local_batches.values()) / plan.accumulation for plan in later]
    assert all(ceiling < micro for ceiling in ceilings), "the ceiling is learned, for the kind of device"


def test_a_refusal_that_is_told_again_changes_nothing() -> None:
    desk, _, trial = on_trial()
    refusal = OutOfMemory(generation=1, plan_version=trial.version, local_batch=trial.local_batches["w0"])
    assert sent(desk.say("w0", refusal), Plan)
    assert not sent(desk.say("w0", refusal), Plan)
    assert not sent(desk.say("w1", refusal), Plan), "nor does another worker that finds the same"


def test_a_smaller_pass_that_fails_under_the_same_plan_is_news() -> None:
    desk = running("w0", "w1")
    for samples in (32, 16, 8):
        trouble = OutOfMemory(generation=1, plan_version=1, local_batch=samples)
        (plan,) = {plan.version: plan for plan in sent(desk.say("w0", trouble), Plan)["w0"]}.values()
        assert plan.global_batch == 64
        assert -(-plan.local_batches["w0"] // plan.accumulation) < samples
        assert not sent(desk.say("w0", trouble), Plan)


def test_a_refusal_reaches_an_operator_that_has_restarted_since() -> None:
    desk, before, trial = on_trial()
    saved = SavedState.model_validate_json(desk.coordinator.saved().model_dump_json())
    later = Desk(saved, planner=SEARCHING)
    later.target("w0", "w1")
    for name in ("w0", "w1"):
        later.hello(name, generation=1, version=before.version, step=100)
    refusal = OutOfMemory(generation=1, plan_version=trial.version, local_batch=trial.local_batches["w0"])
    plans = sent(later.say("w0", refusal), Plan)
    assert plans["w0"][-1].version > trial.version
    assert plans["w0"][-1].global_batch == before.global_batch


def test_no_plan_is_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = running("w0", "w1")
    desk.run("w0", "w1", step=1)
    wishes = [PlanDraft(96, 1, {"w0": 48, "w1": 48}, 1.0)]
    monkeypatch.setattr(desk.coordinator.planner, "poll", lambda now: wishes.pop() if wishes else None)
    first = desk.plan
    assert sent(desk.wait(0.5), Plan)
    assert not sent(desk.wait(2 * TAKE_UP_S), Plan), "a group that stands still takes nothing up"
    for step in range(2, 2 + TAKE_UP_STEPS):
        for name in ("w0", "w1"):
            desk.say(name, desk.steps(name, step, plan_version=1, local_batch=32))
    (plan,) = sent(desk.wait(0.5), Plan)["w1"]
    assert (plan.version, plan.local_batches) == (3, first.local_batches)
    assert "is withdrawn" in desk.coordinator.planner.decisions[-1].reason
    assert not sent(desk.wait(0.8 * TAKE_UP_S), Plan)


def test_c_170_a_container_out_of_host_memory_says_nothing_of_the_device() -> None:
    desk = running("w0", "w1", workers={"min": 1, "max": 8})
    desk.gone("w0", "exit code 137 (OOMKilled)")
    devices = desk.coordinator.planner.state().devices
    assert all(kind.failed is None for kind in devices.kinds.values())
    verdict = judge(Failure(), 0, 137, ["OOMKilled"])
    assert verdict.charged and "the container's memory on the host was full" in verdict.message
    assert judge(Failure(), 0, 137).charged, "137 without a message is no more than a kill"


def test_c_171_a_worker_that_memory_drove_out_is_replaced_at_nobodys_expense() -> None:
    verdict = judge(Failure(max_restarts=0), 0, EXIT_OUT_OF_MEMORY)
    assert not verdict.fail and not verdict.charged
    assert "the device's memory was full" in verdict.message


def test_c_169_a_worker_that_not_even_one_sample_fits_ends_the_job_plainly() -> None:
    desk = running("w0", "w1")
    desk.say("w0", OutOfMemory(generation=1, plan_version=1, local_batch=1))
    view = desk.coordinator.view()
    assert (view.phase, view.reason) == ("Failed", "OutOfMemory")
    assert "not even one sample fits in the memory of w0" in view.message


def test_news_of_an_earlier_life_changes_nothing() -> None:
    desk = running("w0", "w1")
    trouble = OutOfMemory(generation=1, plan_version=1, local_batch=4)
    assert not sent(desk.say("w0", trouble, life="earlier"), Plan)
