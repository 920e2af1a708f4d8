"""Figures and decisions in words, the same wherever the command shows them."""

from __future__ import annotations

from rex_operator.jobs import JobView
from rex_operator.planning import DecisionRecord, PlanSummary


def number(value: float | None, scale: float = 1.0, digits: int = 1) -> str:
    """Return a number, or a dash for what is not known."""
    return "-" if value is None else f"{value * scale:.{digits}f}"


def percent(value: float | None) -> str:
    """Return a signed share in percent."""
    return "-" if value is None else f"{value:+.1%}"


def printable(text: str) -> str:
    """Return a text from elsewhere without what would steer a terminal."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)


def points(value: float, *, sign: bool = True) -> str:
    """Return a difference of two shares in percentage points."""
    return f"{100 * value:{'+' if sign else ''}.1f} points"


def duration(seconds: float) -> str:
    """Return seconds as people say them."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def batch(plan: PlanSummary | None) -> str:
    """Return a plan's batch, with its accumulation if it has any."""
    return "-" if plan is None else in_passes(plan.global_batch, plan.accumulation)


def in_passes(samples: int, passes: int) -> str:
    """Return samples and in how many passes they are taken, if in more than one."""
    return f"{samples}/{passes}" if passes > 1 else f"{samples}"


def progress_line(view: JobView, seconds: float) -> str:
    """Return the state of a job in one line."""
    parts = [f"{duration(seconds)}: {view.phase}"]
    if view.plan is not None:
        running = sum(row.state == "running" for row in view.workers)
        parts += [
            f"step {view.step}" + (f" ({view.progress:.0%})" if view.progress is not None else ""),
            f"{running} workers",
            f"batch {view.plan.global_batch} (plan {view.plan.version})",
            f"{number(view.steps_per_s)} steps/s",
            f"{number(view.samples_per_s, digits=0)} samples/s",
            f"goodput {number(view.goodput, digits=0)}",
            "loss diverged" if view.diverged else f"loss {number(view.loss, digits=4)}",
        ]
        parts += [f"{name} {value:.4f}" for name, value in list(view.metrics.items())[:3]]
        if view.eta_s is not None:
            parts.append(f"{duration(view.eta_s)} to go")
    else:
        parts += [f"{row.worker_id} {row.state}" for row in view.workers]
    return ", ".join(parts)


def decision_line(record: DecisionRecord) -> str:
    """Return a decision in one line, with p-value, effect and windows when it rests on a test."""
    line = f"step {record.step}: {record.kind}: {batch(record.plan_from)} -> {batch(record.plan_to)}. {record.reason}"
    evidence = record.evidence
    if evidence is not None:
        line += (
            f" [p better {evidence.p_better:.2g}, p worse {evidence.p_worse:.2g}, effect {percent(evidence.effect)},"
            f" windows {evidence.n_reference}/{evidence.n_trial} steps, look {evidence.look}]"
        )
    return line
