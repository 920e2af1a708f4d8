"""The run in figures, for people and for scripts."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

from rex_operator.jobs import JobView
from rex_operator.planning import DecisionRecord

VERDICTS = ("accepted", "rejected", "inconclusive", "rebalanced", "vetoed")


class Tally:
    """What is counted over all parts of a run while it runs."""

    def __init__(self) -> None:
        self.decisions: Counter[str] = Counter()
        self.best: dict[str, float] = {}

    @classmethod
    def read(cls, record: Path) -> Tally:
        """Count what an earlier part of the run has written down."""
        tally = cls()
        with record.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                    entry = json.loads(line)
                    if entry["kind"] == "decision":
                        tally.decisions[str(entry["decision"]["kind"])] += 1
                    elif entry["kind"] == "metrics":
                        tally.metrics(entry["values"])
        return tally

    def decision(self, record: DecisionRecord) -> None:
        """Count a decision."""
        self.decisions[record.kind] += 1

    def metrics(self, values: dict[str, float]) -> None:
        """Keep the best and the last of each figure."""
        for name, value in values.items():
            self.best[name] = max(value, self.best.get(name, value))


def summarize(
    view: JobView, tally: Tally, *, seconds: float, restarts: tuple[int, int], outcome: str, message: str
) -> dict[str, Any]:
    """Return the summary of a run; ``restarts`` are charged and not charged."""
    plan = view.plan
    return {
        "job": view.name,
        "outcome": outcome,
        "message": message,
        "seconds": round(seconds, 3),
        "step": view.step,
        "samples": view.samples,
        "samples_per_s": view.samples_per_s,
        "goodput": view.goodput,
        "price_per_hour": view.planner.price_per_hour,
        "price_per_million": view.planner.price_per_million,
        "watts": view.planner.watts,
        "joules_per_sample": view.planner.joules_per_sample,
        "advice": view.planner.advice,
        "loss": view.loss,
        "metrics": view.metrics,
        "best_metrics": dict(tally.best),
        "generation": view.generation,
        "plan_version": plan.version if plan else 0,
        "global_batch": plan.global_batch if plan else None,
        "accumulation": plan.accumulation if plan else None,
        "local_batches": dict(plan.local_batches) if plan else {},
        "passes": dict(plan.passes) if plan else {},
        "devices": {row.worker_id: row.device for row in view.workers},
        "decisions": {kind: tally.decisions[kind] for kind in VERDICTS},
        "restarts": {"charged": restarts[0], "not_charged": restarts[1]},
        "checkpoint_step": view.checkpoint_step,
    }
