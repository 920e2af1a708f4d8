"""A decision read back from a record: plans, evidence, candidates and cost, each as far as it can be used."""

from __future__ import annotations

from typing import Any

from rex_operator.report.record import MAX_CANDIDATES, MAX_WORKERS, Candidate, Cost, Decision, Evidence, Shape
from rex_operator.report.values import number, numbers, text, whole


def read_decision(t: float, line: dict[str, Any]) -> Decision:
    """Return the decision of a line, written ``t`` seconds after the start; what is not understood is left out."""
    inner = line.get("decision")
    body = inner if isinstance(inner, dict) else line
    verdict = body.get("verdict") or (body.get("kind") if body is not line else None) or "unknown"
    candidates = body.get("candidates")
    return Decision(
        t=t,
        step=whole(body.get("step")),
        verdict=text(verdict)[:32],
        reason=text(body.get("reason")),
        before=_shape(body.get("plan_from")),
        after=_shape(body.get("plan_to")),
        evidence=_evidence(body.get("evidence")),
        expectation=number(body.get("expectation")),
        candidates=tuple(_candidates(candidates if isinstance(candidates, list) else [])),
        cost=_cost(body.get("cost")),
    )


def _shape(value: Any) -> Shape | None:
    if not isinstance(value, dict):
        return None
    local = numbers(value.get("local_batches"))
    return Shape(
        global_batch=whole(value.get("global_batch")),
        accumulation=whole(value.get("accumulation")),
        local_batches=dict(list(local.items())[:MAX_WORKERS]),
        learning_rate_factor=number(value.get("learning_rate_factor")),
        own_passes=bool(numbers(value.get("passes"))),
    )


def _evidence(value: Any) -> Evidence | None:
    if not isinstance(value, dict):
        return None
    interval = value.get("interval")
    ends = [number(end) for end in interval] if isinstance(interval, list) and len(interval) == 2 else []
    low, high = ends if len(ends) == 2 else (None, None)
    return Evidence(
        p_better=number(value.get("p_better")),
        p_worse=number(value.get("p_worse")),
        effect=number(value.get("effect")),
        interval=(low, high) if low is not None and high is not None else None,
        a12=number(value.get("a12")),
        n_reference=whole(value.get("n_reference")),
        n_trial=whole(value.get("n_trial")),
        look=whole(value.get("look")),
        level=number(value.get("alpha")),
        switchback=value.get("switchback") is True,
        budget_spent=number(value.get("budget_spent")),
    )


def _candidates(values: list[Any]) -> list[Candidate]:
    found = []
    for value in values[:MAX_CANDIDATES]:
        batch = whole(value.get("global_batch")) if isinstance(value, dict) else None
        if batch is not None:
            passes, gain = whole(value.get("accumulation")), number(value.get("expected_gain"))
            found.append(Candidate(batch, passes or 1, gain, number(value.get("chance"))))
    return found


def _cost(value: Any) -> Cost | None:
    if not isinstance(value, dict):
        return None
    steps, seconds = whole(value.get("steps")), number(value.get("seconds"))
    if steps is None or seconds is None:
        return None
    return Cost(steps, seconds, number(value.get("samples")))
