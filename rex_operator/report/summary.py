"""The run in a handful of figures: what a reader wants to know before any plot.

Speed is compared between two plans of one run: the first even one and the last that the same workers ran long enough to
be measured. Each is taken as the median over its full steps, warm-up left out, so that neither a slow first step nor
the short step at an epoch's end moves the ratio.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rex_operator.report.record import Record, Step, Stretch

WARM_UP = 3
"""First steps of a plan that are not measured."""
ENOUGH = 3
"""Recorded steps that a comparison needs: a run writes down a few a second, and a poor plan does not live long."""


@dataclass(frozen=True)
class Summary:
    """Figures for the head of the report; None where the record does not tell."""

    steps: int
    samples: int
    accuracy: float | None
    best_accuracy: float | None
    loss: float | None
    even: Stretch | None
    settled: Stretch | None
    speed_up: float | None
    spread_before: float | None
    spread_after: float | None
    plan_changes: int
    verdicts: Mapping[str, int]


def summarise(record: Record) -> Summary:
    """Work out the head figures of a record."""
    steps = list(record.steps)
    last = steps[-1] if steps else None
    accuracies = [m.values["accuracy"] for m in record.metrics if "accuracy" in m.values]
    even = next((s for s in record.stretches if is_even(s.local_batches) and len(full_steps(s)) >= ENOUGH), None)
    settled = _settled(record.stretches, even)
    return Summary(
        steps=last.step if last else 0,
        samples=last.samples if last else 0,
        accuracy=accuracies[-1] if accuracies else None,
        best_accuracy=record.best.get("accuracy"),
        loss=next((s.loss for s in reversed(steps) if s.loss is not None), None),
        even=even,
        settled=settled,
        speed_up=_ratio(settled, even),
        spread_before=spread(even),
        spread_after=spread(settled) if settled is not even else None,
        plan_changes=max(0, record.plans - 1),
        verdicts=Counter(decision.verdict for decision in record.decisions),
    )


def is_even(local_batches: Mapping[str, float]) -> bool:
    """Tell whether the shares of several workers differ by no more than rounding."""
    return len(local_batches) > 1 and max(local_batches.values()) - min(local_batches.values()) <= 1


def full_steps(stretch: Stretch) -> list[Step]:
    """Steps of a plan that used its whole batch, warm-up left out."""
    begin = stretch.first.step + WARM_UP
    return [step for step in stretch.steps if step.step >= begin and step.global_batch == stretch.global_batch]


def rate(stretch: Stretch) -> float | None:
    """Median samples/s of a plan, from its own step times."""
    rates = [step.global_batch / step.step_s for step in full_steps(stretch) if step.step_s]
    return median(rates) if rates else None


def spread(stretch: Stretch | None) -> float | None:
    """Slowest over fastest worker of a plan, by their median compute times (1 = they finish together)."""
    if stretch is None:
        return None
    compute = [value for value in worker_medians(stretch, "compute_s").values() if value > 0]
    return max(compute) / min(compute) if len(compute) > 1 else None


def worker_medians(stretch: Stretch, what: str) -> dict[str, float]:
    """Median seconds per worker of a plan; ``what`` is one of the step's ``..._s``."""
    seconds: dict[str, list[float]] = {}
    for step in full_steps(stretch) or list(stretch.steps):
        for worker, value in getattr(step, what).items():
            seconds.setdefault(worker, []).append(value)
    return {worker: median(values) for worker, values in seconds.items()}


def _settled(stretches: Sequence[Stretch], even: Stretch | None) -> Stretch | None:
    """Return the last plan long enough to be measured, best one of the same workers as the even plan."""
    measured = [stretch for stretch in reversed(stretches) if len(full_steps(stretch)) >= ENOUGH]
    alike = (s for s in measured if even is not None and set(s.local_batches) == set(even.local_batches))
    return next(alike, measured[0] if measured else None)


def _ratio(settled: Stretch | None, even: Stretch | None) -> float | None:
    if settled is None or even is None or settled is even:
        return None
    after, before = rate(settled), rate(even)
    return after / before if after and before else None
