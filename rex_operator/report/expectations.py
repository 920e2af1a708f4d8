"""The plot that holds the planner to its word: gains expected of trials, against the gains measured in them."""

from __future__ import annotations

from html import escape

from rex_operator.planning.calibration import Forecast, calibrate
from rex_operator.report import marks
from rex_operator.report.figure import Figure
from rex_operator.report.record import Decision, Record

VERDICTS = ("accepted", "rejected", "inconclusive")


def expectations(record: Record) -> Figure | None:
    """Draw each judged trial with its interval; on the dashed line, a gain came as expected."""
    judged = [(d, f) for d in record.decisions if (f := forecast(d)) is not None]
    found = calibrate(f for _, f in judged)
    if found is None:
        return None
    ends = [100 * value for _, f in judged for value in (f.expected, f.measured, *(f.interval or ()))]
    low, high = min(0.0, *ends), max(1.0, *ends)
    span = [low - 0.05 * (high - low), high + 0.05 * (high - low)]
    traces = [marks.line(span, span, "as expected", "var:muted", dash="dot", width=1)]
    for verdict in VERDICTS:
        chosen = [(d, f) for d, f in judged if d.verdict == verdict]
        if chosen:
            traces.append(_points(verdict, chosen))
    said = (
        f"Over {found.trials} judged trial{'' if found.trials == 1 else 's'}, measured less expected gain:"
        f" {100 * found.bias:+.1f} points in the median; typically {100 * found.error:.1f} points apart."
    )
    if found.told:
        said += f" {found.met} of {found.told} expectations lie within the 95 % interval of the measurement."
    layout = {
        "xaxis": {"title": {"text": "expected gain, %"}, "range": span},
        "yaxis": {**marks.axis("measured gain, %", rangemode="normal"), "range": span},
        "hovermode": "closest",
    }
    return Figure("expectations", "Expected and measured gain", said, traces, layout, wide=False)


def forecast(decision: Decision) -> Forecast | None:
    """Return what a decision expected and measured, if it did both."""
    evidence = decision.evidence
    if decision.expectation is None or evidence is None or evidence.effect is None:
        return None
    return Forecast(decision.expectation, evidence.effect, evidence.interval)


def _points(verdict: str, chosen: list[tuple[Decision, Forecast]]) -> dict[str, object]:
    up = [100 * (f.interval[1] - f.measured) if f.interval else 0 for _, f in chosen]
    down = [100 * (f.measured - f.interval[0]) if f.interval else 0 for _, f in chosen]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": verdict,
        "x": [round(100 * f.expected, 3) for _, f in chosen],
        "y": [round(100 * f.measured, 3) for _, f in chosen],
        "error_y": {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1, "width": 3},
        "text": [escape(d.reason[:120]) for d, _ in chosen],
        "hovertemplate": "%{text}<br>expected %{x:.1f} %, measured %{y:.1f} %<extra>" + verdict + "</extra>",
        "marker": {"symbol": marks.SYMBOLS[verdict], "size": 9, "color": f"var:{verdict}"},
    }
