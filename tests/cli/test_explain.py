"""``rex explain`` tells each decision with its evidence, whether promises were kept, and survives a damaged record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rex_operator.cli.app import app
from rex_operator.planning import CandidateSummary, Cost, DecisionRecord, Evidence, Planner, PlanSummary
from tests.planning.simulated import DEMO, Job, spec


def plan(batch: int, last: int = 9) -> PlanSummary:
    return PlanSummary(
        global_batch=batch, accumulation=1, local_batches={"w0": batch - last, "w1": last}, learning_rate_factor=1.5
    )


CANDIDATES = (
    CandidateSummary(global_batch=128, accumulation=1, expected_gain=0.348, ei=0.2, chance=0.93, trial_s=14.0),
    CandidateSummary(global_batch=108, accumulation=2, expected_gain=0.1, ei=0.02, chance=0.4, trial_s=11.0),
)
STARTED = DecisionRecord(
    time_s=8.0,
    step=200,
    samples=12_800,
    kind="trial-started",
    plan_from=plan(64),
    plan_to=plan(128),
    reason="Trying batch 128 instead of batch 64: expected +34.8%.",
    expectation=0.348,
    candidates=CANDIDATES,
)
DECISION = DecisionRecord(
    time_s=10.0,
    step=280,
    samples=24965,
    kind="accepted",
    plan_from=plan(64),
    plan_to=plan(128),
    reason="batch 128 is better.",
    evidence=Evidence(
        p_better=0.00014,
        p_worse=1.0,
        effect=0.5,
        interval=(0.4, 0.6),
        a12=1.0,
        n_reference=79,
        n_trial=82,
        block=3,
        look=1,
        alpha=0.00279,
        switchback=True,
        drift=0.004,
        budget_spent=0.0125,
    ),
    expectation=0.348,
    cost=Cost(steps=161, seconds=11.0, samples=-320.0),
)
MOVED = DecisionRecord(
    time_s=30.0,
    step=600,
    samples=60_000,
    kind="rebalanced",
    plan_from=plan(128, 9),
    plan_to=plan(128, 30),
    reason="w0 (t4) became 1.97x slower at step 590 (p = 5e-07): shares move, predicted +41.6% throughput.",
    expectation=0.416,
)
ALL = (STARTED, DECISION, MOVED)


def recorded(folder: Path, decisions: Sequence[DecisionRecord], *more: str) -> Path:
    lines = [json.dumps({"t": d.time_s, "kind": "decision", "decision": d.model_dump(mode="json")}) for d in decisions]
    (folder / "record.jsonl").write_text("\n".join(['{"t": 0, "kind": "start"}', *lines, *more]) + "\n")
    return folder


def told(folder: Path, *options: str, width: int = 120) -> str:
    result = CliRunner(env={"COLUMNS": str(width)}).invoke(app, ["explain", str(folder), *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_all_of_the_evidence_is_told(tmp_path: Path) -> None:
    text = " ".join(told(recorded(tmp_path, ALL)).split())
    for words in (
        "3 decisions",
        "accepted at step 280, 24965 samples, after 10 s",
        "batch 64 -> 128, learning rate x1.5",
        "w0 119, w1 9",
        "expected +34.8%, measured +50.0% (95 %: +40.0% to +60.0%): more",
        "p(better) 0.00014, p(worse) 1, level 0.0028 at look 1; A12 1.00",
        "79 steps before, 82 in the trial in blocks of 3",
        "The plan before ran again after the trial; its own steps took +0.4% by then.",
        "0.013 false changes at most",
        "161 steps, 11 s; 320 useful samples lost against going on as before",
        "> batch 128 1 +34.8% 93% 0.2 14 s",
        "batch 108 2 +10.0% 40% 0.02 11 s",
        "w0 (t4) became 1.97x slower",
        "w0 119 -> 98, w1 9 -> 30",
        "Expectations of 1 trial: measured less expected +15.2 points in the median",
        "15.2 points apart as a rule; 0 of 1 within the measured 95 % interval.",
    ):
        assert words in text


def test_a_damaged_record_costs_only_what_is_damaged(tmp_path: Path) -> None:
    line = json.dumps({"t": 19.2, "kind": "decision", "decision": DECISION.model_dump(mode="json")})
    foreign = json.dumps({"t": 20, "kind": "decision", "decision": {"kind": "of another build"}})
    text = told(recorded(tmp_path, [DECISION], "not json", "[]", foreign, line[: len(line) // 2]))
    assert text.count("accepted") == 1


def test_the_newest_only(tmp_path: Path) -> None:
    text = told(recorded(tmp_path, ALL), "--last", "1")
    assert "the last 1 of 3 decisions" in text
    assert "accepted" not in text
    assert "Expectations of 1 trial" in text, "figures over all trials count all of them"


def test_nothing_was_decided(tmp_path: Path) -> None:
    assert "no decision yet" in told(recorded(tmp_path, ()))
    assert json.loads(told(tmp_path, "--json"))["decisions"] == []


def test_a_trial_without_a_verdict_is_named(tmp_path: Path) -> None:
    text = told(recorded(tmp_path, (DECISION, STARTED, MOVED)))
    assert "The trial of batch 128 has no verdict yet." in text
    assert "no verdict" not in told(recorded(tmp_path, ALL))


def test_as_json_a_decision_reads_back(tmp_path: Path) -> None:
    answer = json.loads(told(recorded(tmp_path, ALL), "--json", width=40))
    assert answer["calibration"] == pytest.approx({"trials": 1, "bias": 0.152, "error": 0.152, "met": 0, "told": 1})
    records = [{k: v for k, v in entry.items() if k != "seconds"} for entry in answer["decisions"]]
    assert [DecisionRecord.model_validate_json(json.dumps(record)) for record in records] == list(ALL)


@pytest.mark.parametrize("width", [80, 120])
def test_a_real_job_fits_the_terminal(tmp_path: Path, width: int) -> None:
    planner = Planner(spec(), np.random.default_rng(0))
    job = Job.of(planner, DEMO)
    job.run(20)
    text = told(recorded(tmp_path, list(planner.decisions)), width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    for record in planner.decisions:
        assert " ".join(record.reason.split()) in " ".join(text.split())


def test_who_takes_fewer_passes_is_told(tmp_path: Path) -> None:
    own = plan(128).model_copy(update={"accumulation": 4, "passes": {"w1": 1}})
    text = told(recorded(tmp_path, [STARTED.model_copy(update={"plan_to": own})]))
    assert "w1 1; others 4" in text


def test_shares_of_a_large_group_are_cut(tmp_path: Path) -> None:
    shares = {f"w{i}": 4 for i in range(60)}
    large = PlanSummary(global_batch=240, accumulation=1, local_batches=shares, learning_rate_factor=1.0)
    record = DecisionRecord(time_s=0, step=0, samples=0, kind="membership", plan_to=large, reason="60 workers.")
    assert "w15 4 and 44 more" in " ".join(told(recorded(tmp_path, [record])).split())


def test_what_others_may_have_written_does_not_steer_the_terminal(tmp_path: Path) -> None:
    nasty = "\x1b[2J\x1b]0;title\x07 [bold]fine[/bold]\r\x9b31m"
    record = MOVED.model_copy(
        update={"reason": nasty, "plan_to": plan(128).model_copy(update={"local_batches": {nasty: 128}})}
    )
    text = told(recorded(tmp_path, [record]))
    assert not {"\x1b", "\x07", "\r", "\x9b"} & set(text)
    assert "[bold]fine[/bold]" in text
