"""``rex explain``: why the plan was changed or kept, from the record of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rex_operator.cli.words import batch, duration, percent
from rex_operator.planning import DecisionRecord


def explain_run(run_dir: Path, console: Console | None = None) -> None:
    """Print each decision of the run with its evidence."""
    out = console or Console(highlight=False)
    count = 0
    for at, record in read_decisions(run_dir / "record.jsonl"):
        count += 1
        _explain(out, at, record)
    if not count:
        out.print("no decision is recorded")


def read_decisions(file: Path) -> Iterator[tuple[float, DecisionRecord]]:
    """Yield (seconds of training, decision) in order; lines that are torn or of another build are left out."""
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                entry = json.loads(line)
                if entry["kind"] == "decision":
                    yield float(entry["t"]), DecisionRecord.model_validate_json(json.dumps(entry["decision"]))
            except (ValueError, KeyError, TypeError, ValidationError):
                continue


def _explain(out: Console, at: float, record: DecisionRecord) -> None:
    head = f"{duration(at)}, step {record.step}, {record.samples} samples: {record.kind}"
    out.print(Text(head, style="bold"))
    out.print(Text(f"  {batch(record.plan_from)} -> {batch(record.plan_to)}. {record.reason}"))
    if record.plan_to is not None and record.plan_to.local_batches:
        shares = ", ".join(f"{worker} {share}" for worker, share in record.plan_to.local_batches.items())
        out.print(Text(f"  local batches: {shares}; learning rate x{record.plan_to.learning_rate_factor:.3g}"))
    if record.expectation is not None:
        out.print(Text(f"  expected beforehand: {percent(record.expectation)}"))
    evidence = record.evidence
    if evidence is not None:
        low, high = evidence.interval or (None, None)
        out.print(
            Text(
                f"  evidence: p(better) {evidence.p_better:.3g}, p(worse) {evidence.p_worse:.3g} at level"
                f" {evidence.alpha:.3g}, look {evidence.look}; effect {percent(evidence.effect)}"
                f" ({percent(low)} to {percent(high)}), A12 {evidence.a12:.2f};"
                f" windows {evidence.n_reference} and {evidence.n_trial} steps"
            )
        )
    if record.candidates:
        table = Table(
            "batch", "passes", "expected gain", "expected improvement", title="  candidates", title_justify="left"
        )
        for candidate in record.candidates:
            table.add_row(
                str(candidate.global_batch),
                str(candidate.accumulation),
                percent(candidate.expected_gain),
                f"{candidate.ei:.3g}",
            )
        out.print(table)
