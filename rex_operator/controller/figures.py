"""What the coordinator knows, as the status tells it: plan, progress and decisions, rounded once for readers."""

from __future__ import annotations

import math

from rex_operator.api import JobStatus
from rex_operator.api.status import (
    MAX_DECISIONS,
    MAX_GAIN,
    MAX_NUMBER,
    MAX_UNACKED,
    Decision,
    PlanStatus,
    Progress,
    Spending,
)
from rex_operator.jobs import JobView
from rex_operator.planning import DecisionRecord, PlannerView


def training(before: JobStatus, view: JobView | None) -> dict[str, object]:
    """What the coordinator knows; what was there before stays while it knows nothing yet."""
    if view is None:
        return {}
    news: dict[str, object] = {"generation": max(before.generation, view.generation)}
    if view.plan is not None:
        news["plan"] = PlanStatus(
            version=view.plan.version,
            generation=view.plan.generation,
            global_batch=view.plan.global_batch,
            accumulation=view.plan.accumulation,
            learning_rate_factor=_figures(view.plan.learning_rate_factor, 6),
            state="Pending" if view.unacked else "Applied",
            unacked=list(view.unacked[:MAX_UNACKED]),
            stale=list(view.stale[:MAX_UNACKED]),
        )
    if view.step > 0:
        news["progress"] = _progress(view, before.progress or Progress())
    spending = _spending(view.planner)
    if spending is not None:
        news["spending"] = spending
    if view.decisions:
        news["decisions"] = [_decision(record) for record in view.decisions[-MAX_DECISIONS:]]
    return news


def whole(progress: Progress | None) -> Progress | None:
    """The progress of a job that has succeeded: the script ran to its end, whether or not its last reports came."""
    return progress and progress.model_copy(update={"percent": 100, "summary": "100%"})


def _progress(view: JobView, before: Progress) -> Progress:
    """Rates are unknown for a moment after each change of plan; what was known before stands until then."""
    percent = None if view.progress is None else math.floor(100 * min(1.0, view.progress))
    eta = None if view.eta_s is None or not math.isfinite(view.eta_s) else max(0, round(view.eta_s))
    return Progress(
        step=view.step,
        samples=view.samples,
        steps_lost=view.steps_lost,
        percent=percent,
        summary=f"step {view.step}" if percent is None else f"{percent}%",
        steps_per_second=_rate(view.steps_per_s, before.steps_per_second),
        samples_per_second=_rate(view.samples_per_s, before.samples_per_second),
        goodput=_rate(view.goodput, before.goodput),
        loss=_figures(view.loss, 4) if view.loss is not None and abs(view.loss) < MAX_NUMBER else None,
        eta_seconds=eta,
        eta="" if eta is None else _duration(eta),
    )


def _spending(planner: PlannerView) -> Spending | None:
    """What the workers cost; None where neither their prices nor their power are known."""

    def figure(value: float | None) -> float | None:
        return None if value is None else min(MAX_NUMBER, max(0.0, _figures(value)))

    if planner.price_per_hour is None and planner.watts is None:
        return None
    return Spending(
        price_per_hour=figure(planner.price_per_hour),
        price_per_million_samples=figure(planner.price_per_million),
        watts=figure(planner.watts),
        joules_per_sample=figure(planner.joules_per_sample),
        advice=(planner.advice or "")[:512],
    )


def _decision(record: DecisionRecord) -> Decision:
    evidence, cost = record.evidence, record.cost
    figures: dict[str, float | None] = {"expected": record.expectation}
    if evidence is not None:
        figures["effect"] = evidence.effect
        if evidence.interval is not None:
            figures["effect_low"], figures["effect_high"] = evidence.interval
        figures["p_value"] = min(1.0, max(0.0, min(evidence.p_better, evidence.p_worse)))
        figures["level"] = min(1.0, max(0.0, evidence.alpha))
    if cost is not None:
        figures["trial_seconds"], figures["samples_won"] = max(0.0, cost.seconds), cost.samples
    return Decision.model_validate(
        {
            "step": record.step,
            "kind": record.kind,
            "batch_from": record.plan_from.global_batch if record.plan_from else None,
            "batch_to": record.plan_to.global_batch if record.plan_to else None,
            "reason": record.reason,
            **{name: _bounded(value) for name, value in figures.items() if value is not None},
        }
    )


def _bounded(value: float) -> float:
    return _figures(min(MAX_GAIN, max(-MAX_GAIN, value)))


def _rate(value: float | None, before: float) -> float:
    return before if not value else min(MAX_NUMBER, max(0.0, _figures(value)))


def _figures(value: float, digits: int = 3) -> float:
    return float(f"{value:.{digits}g}") if math.isfinite(value) else 0.0


def _duration(seconds: int) -> str:
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
