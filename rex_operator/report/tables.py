"""The decisions and other happenings of a run, as HTML tables.

A verdict is never told by colour alone: each has its word and its sign. Whatever came from the run is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from rex_operator.report.record import Candidate, Cost, Decision, Evidence, Happening, Shape

SIGNS = {
    "accepted": "✓",
    "adopted": "↦",
    "rejected": "✕",
    "vetoed": "✕",
    "inconclusive": "≈",
    "switchback": "⇆",
    "rebalanced": "⇄",
    "membership": "◍",
    "trial-started": "▸",
    "climbed": "▴",
    "converged": "■",
    "ceiling": "▲",
    "rescaled": "∿",
    "advised": "☞",
}
NONE = '<span class="dim">–</span>'
INKED = {"accepted", "rejected", "inconclusive"}


def decisions_section(decisions: Sequence[Decision], left_out: int) -> str:
    """Lay out every decision with its evidence, in the order in which they were taken."""
    if not decisions:
        said = "The planner decided nothing in this run."
        return f'<section class="card wide" id="decisions"><h2>Decisions</h2><p class="said">{said}</p></section>'
    scale = max((abs(end) for d in decisions if d.evidence for end in _ends(d.evidence)), default=0.1)
    rows = "\n".join(_decision(decision, max(scale, 0.02)) for decision in decisions)
    note = f" {left_out} from the middle are left out." if left_out else ""
    return f"""<section class="card" id="decisions" aria-labelledby="decisions-title">
<h2 id="decisions-title">Decisions and their evidence</h2>
<p class="said">Everything that the planner changed, tried or refused, and the figures behind it.{note}</p>
<div class="scroll" tabindex="0" role="region" aria-labelledby="decisions-title"><table>
<caption>Decisions of the planner with expectation, p-value, effect, A12, window sizes and cost</caption>
<thead><tr><th scope="col" class="n">Time</th><th scope="col" class="n">Step</th><th scope="col">Verdict</th>
<th scope="col">Plan</th><th scope="col" class="n">Expected</th>
<th scope="col" class="n">p</th><th scope="col">Effect, 95 % interval</th>
<th scope="col" class="n">A₁₂</th><th scope="col" class="n">
<abbr title="steps in the reference window and in the trial">n</abbr></th><th scope="col" class="n">
<abbr title="what the whole trial took, and the useful samples won or lost against going on as before">Cost</abbr></th>
<th scope="col">Why</th></tr></thead>
<tbody>
{rows}
</tbody></table></div></section>"""


def happenings_section(happenings: Sequence[Happening]) -> str:
    """Lay out what else happened: memberships, lost workers, checkpoints."""
    if not happenings:
        return ""
    rows = "\n".join(_happening(happening) for happening in happenings)
    return f"""<section class="card" aria-labelledby="events-title">
<h2 id="events-title">What else happened</h2>
<div class="scroll" tabindex="0" role="region" aria-labelledby="events-title"><table class="slim">
<caption>Memberships and other events</caption>
<thead><tr><th scope="col" class="n">Time</th><th scope="col">Kind</th><th scope="col">What</th></tr></thead>
<tbody>
{rows}
</tbody></table></div></section>"""


def clock(seconds: float) -> str:
    """Write seconds since start as 12.3 s, 4:05 or 1:04:05."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _happening(happening: Happening) -> str:
    style = "membership" if happening.kind == "membership" else "neutral"
    badge = f'<span class="badge {style}">{escape(happening.kind)}</span>'
    return f'<tr><td class="n">{clock(happening.t)}</td><td>{badge}</td><td>{escape(happening.text)}</td></tr>'


def _decision(decision: Decision, scale: float) -> str:
    verdict = decision.verdict
    style = verdict if verdict in SIGNS and verdict != "trial-started" else "neutral"
    sign = SIGNS.get(verdict, "•")
    evidence = decision.evidence
    p = a12 = n = effect = expected = NONE
    if decision.expectation is not None:
        expected = _percent(decision.expectation)
    if evidence is not None:
        p, effect = _p(evidence, verdict), _effect(evidence, verdict, scale)
        a12 = f"{evidence.a12:.2f}" if evidence.a12 is not None else a12
        if evidence.n_reference is not None and evidence.n_trial is not None:
            n = f"{evidence.n_reference} / {evidence.n_trial}"
            if evidence.look is not None:
                again = ", A-B-A" if evidence.switchback else ""
                n += f'<span class="shares">look {evidence.look}{again}</span>'
    step = "–" if decision.step is None else str(decision.step)
    said = escape(verdict.replace("-", " "))
    badge = f'<span class="badge {style}"><i aria-hidden="true">{sign}</i>{said}</span>'
    return (
        f'<tr><td class="n nowrap">{clock(decision.t)}</td><td class="n">{step}</td><td>{badge}</td>'
        f"<td class='plan'>{_change(decision)}</td><td class='n'>{expected}</td><td class='n'>{p}</td><td>{effect}</td>"
        f"<td class='n'>{a12}</td><td class='n'>{n}</td><td class='n'>{_cost(decision.cost)}</td>"
        f"<td class='reason'>{escape(decision.reason)}{_considered(decision.candidates)}</td></tr>"
    )


def _cost(cost: Cost | None) -> str:
    if cost is None:
        return NONE
    samples = ""
    if cost.samples is not None:
        samples = f'<span class="shares">{cost.samples:+,.0f} samples</span>'.replace("-", "−")
    return f'{clock(cost.seconds)}<span class="shares">{cost.steps} steps</span>{samples}'


def _considered(candidates: Sequence[Candidate]) -> str:
    """Fold away what else was considered; opens without JavaScript."""
    if not candidates:
        return ""
    lines = "".join(f'<span class="shares">{_candidate(each)}</span>' for each in candidates)
    return f'<details><summary class="dim">{len(candidates)} considered</summary>{lines}</details>'


def _candidate(candidate: Candidate) -> str:
    said = _batch(Shape(candidate.global_batch, candidate.accumulation, {}, None))
    if candidate.expected_gain is not None:
        said += f": {_percent(candidate.expected_gain)}"
    return said if candidate.chance is None else f"{said}, chance {100 * candidate.chance:.0f} %"


def _change(decision: Decision) -> str:
    before, after = decision.before, decision.after
    if before is None or after is None:
        shape = after or before
        if shape is None:
            return NONE
        return f'<span class="nowrap">{_batch(shape)}</span>{_shares(shape.local_batches)}'
    if _batch(before) != _batch(after):
        return f'<span class="nowrap">{_batch(before)} → {_batch(after)}</span>{_shares(after.local_batches)}'
    moved = _shares(before.local_batches, "from ") if before.local_batches != after.local_batches else ""
    return f'<span class="nowrap">{_batch(after)}</span>{moved}{_shares(after.local_batches, "to " if moved else "")}'


def _batch(shape: Shape) -> str:
    batch = "?" if shape.global_batch is None else str(shape.global_batch)
    passes = shape.accumulation or 1
    return batch if passes == 1 else f"{batch} in {'up to ' if shape.own_passes else ''}{passes} passes"


def _shares(local_batches: Mapping[str, float], opening: str = "") -> str:
    if not local_batches:
        return ""
    shown = list(local_batches.values())[:12]
    more = " …" if len(local_batches) > len(shown) else ""
    return f'<span class="shares">{opening}{" · ".join(f"{share:g}" for share in shown)}{more}</span>'


def _p(evidence: Evidence, verdict: str) -> str:
    better, worse = evidence.p_better, evidence.p_worse
    telling = worse if verdict in {"rejected", "vetoed"} and worse is not None else better
    if telling is None:
        return NONE
    lines = _small(telling)
    if verdict == "inconclusive" and better is not None and worse is not None:
        lines = f'{_small(better)}<span class="shares">worse: {_small(worse)}</span>'
    return lines


def _small(p: float) -> str:
    if p >= 0.001:
        return f"{p:.3f}"
    if p < 1e-99:
        return "&lt; 10<sup>−99</sup>"
    digits, exponent = f"{p:.1e}".split("e")
    return f"{digits}·10<sup>−{-int(exponent)}</sup>"


def _ends(evidence: Evidence) -> list[float]:
    ends = [*evidence.interval] if evidence.interval else []
    return [*ends, evidence.effect] if evidence.effect is not None else ends


def _effect(evidence: Evidence, verdict: str, scale: float) -> str:
    if evidence.effect is None:
        return NONE
    ink = f"ink-{verdict if verdict in INKED else 'neutral'}"
    middle = 48.0

    def place(value: float) -> float:
        return middle + 42 * max(-1.0, min(1.0, value / scale))

    bar = ""
    words = ""
    if evidence.interval is not None:
        low, high = evidence.interval
        bar = f'<line class="interval {ink}" x1="{place(low):.1f}" x2="{place(high):.1f}" y1="9" y2="9"/>'
        words = f"<small>{_percent(low)} to {_percent(high)}</small>"
    drawing = (
        '<svg width="96" height="18" aria-hidden="true"><line class="axis" x1="2" x2="94" y1="9" y2="9"/>'
        f'<line class="zero" x1="{middle}" x2="{middle}" y1="1" y2="17"/>{bar}'
        f'<circle class="{ink}" cx="{place(evidence.effect):.1f}" cy="9" r="3.5"/></svg>'
    )
    return f'<div class="effect">{drawing}<span><b>{_percent(evidence.effect)}</b>{words}</span></div>'


def _percent(value: float) -> str:
    return f"{100 * value:+.1f} %".replace("-", "−")
