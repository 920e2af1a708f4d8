"""``rex explain`` tells each decision with its evidence, and survives a damaged record."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from rex_operator.cli.explain import explain_run
from rex_operator.planning import CandidateSummary, DecisionRecord, Evidence, PlanSummary


def plan(batch: int) -> PlanSummary:
    return PlanSummary(
        global_batch=batch, accumulation=1, local_batches={"w0": batch - 9, "w1": 9}, learning_rate_factor=1.5
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
        look=1,
        alpha=0.00279,
    ),
    expectation=0.348,
    candidates=(CandidateSummary(global_batch=108, accumulation=2, expected_gain=0.1, ei=0.02),),
)


def test_all_of_the_evidence_is_told(tmp_path: Path) -> None:
    line = json.dumps({"t": 19.2, "kind": "decision", "decision": DECISION.model_dump(mode="json")})
    torn = line[: len(line) // 2]
    (tmp_path / "record.jsonl").write_text(f'{{"t": 0, "kind": "start"}}\nnot json\n{line}\n{torn}')
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    explain_run(tmp_path, console)
    console.file.close()
    text = console.export_text()
    for words in (
        "step 280",
        "accepted",
        "64 -> 128",
        "w1 9",
        "expected beforehand: +34.8%",
        "p(better) 0.00014",
        "at level 0.00279",
        "effect +50.0% (+40.0% to +60.0%)",
        "windows 79 and 82 steps",
        "108",
    ):
        assert words in text
    assert text.count("accepted") == 1
