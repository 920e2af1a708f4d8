"""The strokes that the report's plots are drawn with: lines, running medians, time axes, verdicts.

Colours are names (``var:series-0``) that the page resolves from its style sheet, so that one figure serves the light
and the dark theme. Every text that came from the run is escaped here: plotly reads a subset of HTML in labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import median
from typing import Any

from rex_operator.report.record import Decision

SYMBOLS = {"accepted": "circle", "rejected": "x", "vetoed": "x", "inconclusive": "diamond"}
MAX_BANDS = 80


@dataclass(frozen=True)
class Clock:
    """Time since start in the unit that suits the length of the run."""

    unit: str
    seconds: float
    duration_s: float

    @classmethod
    def of(cls, duration_s: float) -> Clock:
        """Pick seconds, minutes or hours."""
        if duration_s < 600:
            return cls("seconds", 1, duration_s)
        return cls("minutes", 60, duration_s) if duration_s < 3 * 3600 else cls("hours", 3600, duration_s)

    def __call__(self, t: float) -> float:
        """Convert seconds since start."""
        return round(t / self.seconds, 3)

    def axis(self, **more: Any) -> dict[str, Any]:
        """Describe a time axis; all plots over time have the same one."""
        return {"title": {"text": f"{self.unit} since start"}, "range": [0, self(self.duration_s * 1.01)], **more}


def smoothed(
    points: Sequence[tuple[float, float | None]], name: str, color: str, axis: str = "y"
) -> list[dict[str, Any]]:
    """Draw single values as pale dots and their running median as the line to read."""
    if not points:
        return []
    x, y = [p[0] for p in points], [p[1] for p in points]
    dots = {
        "type": "scatter",
        "mode": "markers",
        "x": x,
        "y": y,
        "yaxis": axis,
        "marker": {"size": 3, "color": color, "opacity": 0.28},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    drawn = {**line(x, _running_median(y), name, color, width=2), "yaxis": axis}
    return [dots, drawn] if len(points) > 20 else [{**drawn, "y": y}]


def _running_median(values: Sequence[float | None], reach: int = 7) -> list[float]:
    present = [value if value is not None else 0.0 for value in values]
    return [round(median(present[max(0, i - reach) : i + reach + 1]), 6) for i in range(len(present))]


def line(
    x: Sequence[Any],
    y: Sequence[Any],
    name: str,
    color: str,
    *,
    dash: str = "solid",
    shape: str = "linear",
    width: float = 2,
) -> dict[str, Any]:
    """Draw a line; ``shape`` ``hv`` holds each value until the next."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": color, "dash": dash, "shape": shape, "width": width},
    }


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Describe an axis of values that begins at zero unless told otherwise."""
    return {"title": {"text": title}, "rangemode": "tozero", **more}


def panel_title(title: str, left: float) -> dict[str, Any]:
    """Write a title over one of several panels; ``left`` is where it begins, as a share of the width."""
    return {
        "text": title,
        "xref": "paper",
        "yref": "paper",
        "x": left,
        "y": 1.0,
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
        "yshift": 6,
    }


def verdict_markers(decisions: Sequence[Decision], clock: Clock) -> list[dict[str, Any]]:
    """Mark each verdict at the batch that was tried, by sign and colour."""
    traces = []
    for verdict, symbol in SYMBOLS.items():
        chosen = [d for d in decisions if d.verdict == verdict and _tried(d) is not None]
        if not chosen:
            continue
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": verdict,
                "x": [clock(d.t) for d in chosen],
                "y": [_tried(d) for d in chosen],
                "text": [escape(d.reason[:120]) for d in chosen],
                "hovertemplate": "%{text}<extra>" + verdict + "</extra>",
                "marker": {
                    "symbol": symbol,
                    "size": 11,
                    "color": f"var:{verdict}",
                    "line": {"width": 1.5, "color": "var:card"},
                },
            }
        )
    return traces


def _tried(decision: Decision) -> int | None:
    # An accepted change leads to what was tried, any other verdict leads away from it.
    ends = (decision.after, decision.before) if decision.verdict == "accepted" else (decision.before, decision.after)
    shape = ends[0] or ends[1]
    return shape.global_batch if shape else None


def bands(decisions: Sequence[Decision], clock: Clock) -> list[dict[str, Any]]:
    """Shade each trial from its start to its verdict, the last one to the end of the run if it has none."""
    bands: list[dict[str, Any]] = []
    started: float | None = None
    for decision in decisions:
        if decision.verdict == "trial-started":
            started = decision.t
        elif started is not None and decision.verdict in SYMBOLS:
            bands.append(_band(clock(started), clock(decision.t), decision.verdict))
            started = None
        elif decision.verdict in ("switchback", "climbed"):  # another plan runs, as part of the trial
            continue
        elif started is not None and (decision.verdict == "membership" or _batch_changes(decision)):
            bands.append(_band(clock(started), clock(decision.t), "neutral"))
            started = None
    if started is not None:
        bands.append(_band(clock(started), clock(clock.duration_s), "neutral"))
    return bands[-MAX_BANDS:]


def _batch_changes(decision: Decision) -> bool:
    before, after = decision.before, decision.after
    if before is None or after is None:
        return False
    return (before.global_batch, before.accumulation) != (after.global_batch, after.accumulation)


def _band(start: float, end: float, color: str) -> dict[str, Any]:
    return {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": start,
        "x1": end,
        "y0": 0,
        "y1": 1,
        "layer": "below",
        "line": {"width": 0},
        "fillcolor": f"var:{color}",
        "opacity": 0.13,
    }
