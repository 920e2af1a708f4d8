"""A decision is one event, with expectation and cost; it is in the status, bounded; figures of planning are metrics."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import get_args

from rex_operator.api import JobStatus
from rex_operator.api.status import MAX_DECISIONS
from rex_operator.controller.decide import decide
from rex_operator.controller.events import Recorder
from rex_operator.controller.metrics import JobFigures
from rex_operator.controller.observe import Memory
from rex_operator.controller.picture import picture
from rex_operator.controller.storyteller import Storyteller
from rex_operator.planning import PlannerView
from rex_operator.planning.calibration import Calibration
from rex_operator.planning.types import DecisionKind
from tests.cli.test_explain import DECISION, MOVED
from tests.controller.pictures import OWNER, pod, seen, training
from tests.controller.recording import RecordingKube
from tests.controller.virtual import in_virtual_time


@in_virtual_time
async def test_sixteen_decisions_are_sixteen_events_however_long_they_are_shown() -> None:
    kube, status, pods = RecordingKube(), JobStatus(), [pod("w0"), pod("w1")]
    recorder = Recorder(kube.as_kube(), "me")
    story, memory = Storyteller(recorder), Memory(OWNER.uid)
    records = [MOVED.model_copy(update={"step": step}) for step in range(15)] + [DECISION]
    for _ in range(40):
        observed = seen(pods, view=replace(training(*pods), decisions=tuple(records)), status=status)
        decision = decide(observed)
        story.tell(observed, decision, memory)
        status = decision.status
        await asyncio.sleep(60)
    await recorder.flush()
    notes = [event["note"] for event in kube.created if event["reason"].startswith("Plan")]
    assert len(notes) == len(set(notes)) == 16
    told = next(event for event in kube.created if event["reason"] == "PlanAccepted")["note"]
    assert told == (
        "step 280: batch 128 is better. (effect +50.0%, expected +34.8%, p = 0.00014, 79 against 82 steps)"
        " The trial took 161 steps in 11 s."
    )
    assert len(status.decisions) == MAX_DECISIONS


@in_virtual_time
async def test_every_kind_is_told_but_a_new_membership() -> None:
    for kind in get_args(DecisionKind):
        kube, pods = RecordingKube(), [pod("w0")]
        recorder = Recorder(kube.as_kube(), "me")
        observed = seen(
            pods,
            view=replace(training(*pods), decisions=(MOVED.model_copy(update={"kind": kind}),)),
            status=JobStatus(),
        )
        Storyteller(recorder).tell(observed, decide(observed), Memory(OWNER.uid))
        await recorder.flush()
        reasons = [event["reason"] for event in kube.created if event["reason"].startswith("Plan")]
        assert len(reasons) == (kind != "membership"), kind


def test_the_status_has_what_was_expected_measured_and_paid() -> None:
    status = picture(seen([pod("w0")], view=replace(training(pod("w0")), decisions=(DECISION,))))
    assert status.dump()["decisions"] == [
        {
            "step": 280,
            "kind": "accepted",
            "batchFrom": 64,
            "batchTo": 128,
            "expected": 0.348,
            "effect": 0.5,
            "effectLow": 0.4,
            "effectHigh": 0.6,
            "pValue": 0.00014,
            "level": 0.00279,
            "trialSeconds": 11.0,
            "samplesWon": -320.0,
            "reason": "batch 128 is better.",
        }
    ]


def test_metrics_tell_trials_budget_and_how_expectations_come_out() -> None:
    planner = PlannerView(noise_scale=300.0, trials=4, budget_spent=0.05)
    calibration = Calibration(trials=1, bias=0.152, error=0.152, met=0, told=1)
    view = replace(training(pod("w0")), calibration=calibration, planner=planner, converged=True)
    families = {family.name: family for family in JobFigures(lambda: [view], dict).collect()}
    values = {name: family.samples[0].value for name, family in families.items() if family.samples}
    assert values["rex_job_trials"] == 4
    assert values["rex_job_converged"] == 1
    assert values["rex_job_error_budget_spent"] == 0.05
    assert values["rex_job_expectation_bias_ratio"] == 0.152
    assert values["rex_job_noise_scale"] == 300


def test_every_metric_of_a_job_is_in_the_operators_page() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "operator.md").read_text(encoding="utf-8")
    names = [family.name for family in JobFigures(lambda: [], dict).collect() if family.name.startswith("rex_job_")]
    assert [name for name in names if f"`{name}`" not in page] == []
