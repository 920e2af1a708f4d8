"""``rex explain``: why the plan was changed or kept, and whether what was promised came true.

A decision is a block: what was decided, why, the plan before and after, what was expected and what was measured, the
test behind the verdict, what finding out has cost, and what else was considered.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rex_operator.api.status import Decision
from rex_operator.cli.decisions import Told
from rex_operator.cli.words import batch, duration, percent, points, printable
from rex_operator.planning import CandidateSummary, Cost, DecisionRecord, Evidence, PlanSummary
from rex_operator.planning.calibration import Calibration, calibrate, forecast

MAX_SHARES = 16
"""Workers whose shares are printed; of larger groups the first of them."""


def explain(told: Told, *, last: int | None = None, as_json: bool = False, console: Console | None = None) -> None:
    """Print the decisions, or the ``last`` so many of them; figures over all trials count all of them."""
    out = console or Console(highlight=False)
    shown = told.decisions if last is None else told.decisions[-last:]
    short = told.short if last is None else told.short[-last:]
    records = [record for _, record in told.decisions]
    calibration = calibrate(forecast(record) for record in records)
    if as_json:
        out.print(Text(json.dumps(_json(told, shown, short, calibration), indent=2)), soft_wrap=True)
        return
    out.print(Text.assemble((told.job, "bold"), f": {_counted(told, len(shown) + len(short))}, from {told.source}"))
    if told.note:
        out.print(Text(printable(told.note)))
    for at, record in shown:
        out.print()
        _explain(out, at, record)
    for decision in short:
        out.print()
        _explain_short(out, decision)
    if records:
        out.print()
        for line in closing(records, calibration):
            out.print(Text(line))


def closing(records: Sequence[DecisionRecord], calibration: Calibration | None) -> Iterator[str]:
    """Yield what all decisions together say: expectations, cost, error budget, and a trial without a verdict."""
    if calibration is not None:
        yield expectations(calibration)
    costs = [record.cost for record in records if record.cost is not None]
    if costs:
        total = Cost(
            steps=sum(c.steps for c in costs),
            seconds=sum(c.seconds for c in costs),
            samples=sum(c.samples for c in costs),
        )
        yield f"Trials in all: {_cost(total)}."
    spent = [r.evidence.budget_spent for r in records if r.evidence and r.evidence.budget_spent is not None]
    if spent:
        yield f"Error budget: by chance alone, at most {spent[-1]:.2g} changes are to be expected of all trials so far."
    open_trial = _open_trial(records)
    if open_trial is not None:
        yield f"The trial of batch {batch(open_trial.plan_to)} has no verdict yet."


def expectations(calibration: Calibration) -> str:
    """Say how expectations came out."""
    trials = "1 trial" if calibration.trials == 1 else f"{calibration.trials} trials"
    met = f"; {calibration.met} of {calibration.told} within the measured 95 % interval" if calibration.told else ""
    return (
        f"Expectations of {trials}: measured less expected {points(calibration.bias)} in the median,"
        f" {points(calibration.error, sign=False)} apart as a rule{met}."
    )


def _counted(told: Told, shown: int) -> str:
    count = len(told.decisions) + len(told.short)
    if not count:
        return "no decision yet"
    decisions = "1 decision" if count == 1 else f"{count} decisions"
    return decisions if shown == count else f"the last {shown} of {decisions}"


def _open_trial(records: Sequence[DecisionRecord]) -> DecisionRecord | None:
    """Return the start of a trial that nothing has ended; shares and rate may change in one."""
    for record in reversed(records):
        if record.kind == "trial-started":
            return record
        before, after = record.plan_from, record.plan_to
        same = before is not None and after is not None and before.global_batch == after.global_batch
        if record.kind not in ("switchback", "climbed") and not (same and record.kind in ("rebalanced", "rescaled")):
            return None
    return None


def _explain(out: Console, at: float, record: DecisionRecord) -> None:
    out.print(
        Text.assemble(
            (record.kind.replace("-", " "), "bold"),
            f" at step {record.step}, {record.samples} samples, after {duration(at)}",
        )
    )
    grid = _grid()
    for label, text in _rows(record):
        grid.add_row(f"  {label}", Text(printable(text)))
    out.print(grid)
    if record.candidates:
        out.print(_candidates(record))


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=10)
    grid.add_column()
    return grid


def _rows(record: DecisionRecord) -> Iterator[tuple[str, str]]:
    before, after, evidence = record.plan_from, record.plan_to, record.evidence
    yield "why", record.reason
    rates = [f"x{plan.learning_rate_factor:.3g}" for plan in (before, after) if plan is not None]
    batches = [batch(plan) for plan in (before, after) if plan is not None]
    if batches:
        yield "batch", f"{_change(batches)}, learning rate {_change(rates)}"
    if after is not None and after.local_batches:
        yield "shares", _shares(before.local_batches if before else {}, after.local_batches)
        if after.passes:
            yield "passes", _passes(after)
    if record.expectation is not None and evidence is None:
        yield "expected", percent(record.expectation)
    if evidence is not None:
        yield "effect", _effect(record, evidence)
        yield "test", _test(evidence)
        if evidence.switchback:
            drift = "" if evidence.drift is None else f"; its own steps took {evidence.drift:+.1%} by then"
            yield "", f"The plan before ran again after the trial{drift}."
        if evidence.budget_spent is not None:
            yield "budget", f"{evidence.budget_spent:.2g} false changes at most, over all trials so far"
    if record.cost is not None:
        yield "cost", _cost(record.cost)


def _change(ends: Sequence[str]) -> str:
    return " -> ".join(dict.fromkeys(ends))


def _shares(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """Name shares, and what they were where the same workers had others."""
    known = before.keys() == after.keys() and sum(before.values()) == sum(after.values())
    moved = [w for w in after if not known or before[w] != after[w]]
    told = [f"{w} {before[w]} -> {after[w]}" if known else f"{w} {after[w]}" for w in moved[:MAX_SHARES]]
    more = len(moved) - len(told)
    if not moved:
        return "unchanged"
    return (
        ", ".join(told)
        + (f" and {more} more" if more else "")
        + (f"; {len(after) - len(moved)} unchanged" if known and len(moved) < len(after) else "")
    )


def _passes(plan: PlanSummary) -> str:
    """Name the workers that take their share in fewer passes than the others."""
    told = [f"{worker} {own}" for worker, own in list(plan.passes.items())[:MAX_SHARES]]
    more, others = len(plan.passes) - len(told), len(plan.local_batches) - len(plan.passes)
    return ", ".join(told) + (f" and {more} more" if more else "") + (f"; others {plan.accumulation}" if others else "")


def _effect(record: DecisionRecord, evidence: Evidence) -> str:
    text = f"measured {percent(evidence.effect)}"
    if evidence.interval is not None:
        text += f" (95 %: {percent(evidence.interval[0])} to {percent(evidence.interval[1])})"
    each = forecast(record)
    if each is None:
        return text
    verdict = "as expected" if each.met else "less" if each.measured < each.expected else "more"
    return f"expected {percent(each.expected)}, {text}" + ("" if each.met is None else f": {verdict}")


def _test(evidence: Evidence) -> str:
    blocks = "" if evidence.block == 1 else f" in blocks of {evidence.block}"
    return (
        f"p(better) {evidence.p_better:.2g}, p(worse) {evidence.p_worse:.2g}, level {evidence.alpha:.2g} at look"
        f" {evidence.look}; A12 {evidence.a12:.2f}; {evidence.n_reference} steps before, {evidence.n_trial} in the"
        f" trial{blocks}"
    )


def _cost(cost: Cost) -> str:
    return f"{cost.steps} steps, {duration(cost.seconds)}; {_won(cost.samples)} against going on as before"


def _won(samples: float) -> str:
    return f"{abs(samples):.0f} useful samples {'won' if samples > 0 else 'lost'}"


def _candidates(record: DecisionRecord) -> Table:
    """Lay out what was considered; what was chosen has a mark."""
    chosen = record.plan_to if record.kind == "trial-started" else None
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("  considered")
    for name in ("passes", "expected", "chance", "improvement", "trial takes"):
        table.add_column(name, justify="right")
    for each in record.candidates:
        taken = chosen is not None and _key(each) == _key(chosen)
        table.add_row(
            f"{'>' if taken else ' '} batch {each.global_batch}",
            str(each.accumulation),
            percent(each.expected_gain),
            f"{each.chance:.0%}",
            f"{each.ei:.2g}",
            duration(each.trial_s) if each.trial_s else "-",
        )
    return table


def _key(plan: CandidateSummary | PlanSummary) -> tuple[int, int]:
    return plan.global_batch, plan.accumulation


def _explain_short(out: Console, decision: Decision) -> None:
    out.print(Text.assemble((printable(decision.kind.replace("-", " ")), "bold"), f" at step {decision.step}"))
    grid = _grid()
    grid.add_row("  why", Text(printable(decision.reason)))
    if decision.batch_to is not None:
        ends = [str(batch) for batch in (decision.batch_from, decision.batch_to) if batch is not None]
        grid.add_row("  batch", _change(ends))
    if decision.effect is not None:
        grid.add_row("  effect", Text(_short_effect(decision)))
    elif decision.expected is not None:
        grid.add_row("  expected", percent(decision.expected))
    if decision.p_value is not None:
        grid.add_row(
            "  test", f"p {decision.p_value:.2g}" + (f", level {decision.level:.2g}" if decision.level else "")
        )
    if decision.trial_seconds is not None:
        grid.add_row("  cost", f"{duration(decision.trial_seconds)}; {_won(decision.samples_won or 0)}")
    out.print(grid)


def _short_effect(decision: Decision) -> str:
    hoped = "" if decision.expected is None else f"expected {percent(decision.expected)}, "
    ends = (decision.effect_low, decision.effect_high)
    interval = "" if None in ends else f" (95 %: {percent(ends[0])} to {percent(ends[1])})"
    return f"{hoped}measured {percent(decision.effect)}{interval}"


def _json(
    told: Told,
    shown: Sequence[tuple[float, DecisionRecord]],
    short: Sequence[Decision],
    calibration: Calibration | None,
) -> dict[str, Any]:
    return {
        "job": told.job,
        "source": told.source,
        "note": told.note,
        "count": len(told.decisions) + len(told.short),
        "decisions": [{"seconds": at, **record.model_dump(mode="json")} for at, record in shown],
        "status": [decision.model_dump(mode="json", exclude_none=True) for decision in short],
        "calibration": None if calibration is None else asdict(calibration),
    }
