"""The plots of a report: which there are, what each shows, and what it says in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import log2
from typing import Any

from rex_operator.report import marks
from rex_operator.report.expectations import expectations
from rex_operator.report.figure import Figure
from rex_operator.report.record import MAX_WORKERS, Record
from rex_operator.report.summary import Summary, worker_medians

DASHES = ("solid", "dash", "dot", "dashdot")
SERIES = 8


def draw(record: Record, summary: Summary) -> list[Figure]:
    """Draw every plot that the record has data for."""
    clock = marks.Clock.of(record.duration_s)
    figures = [
        _local_batches(record, clock),
        _global_batch(record, clock),
        _throughput(record, clock),
        *_learning(record, clock),
        _compute_and_wait(record, summary),
        _spread(record, clock),
        _noise(record, clock),
        expectations(record),
    ]
    return [figure for figure in figures if figure is not None]


def _local_batches(record: Record, clock: marks.Clock) -> Figure | None:
    workers = _workers(record)
    if not workers:
        return None
    traces = []
    for worker, style in workers.items():
        x, y = [], []
        for stretch in record.stretches:
            share = stretch.local_batches.get(worker)
            x += [clock(stretch.first.t), clock(stretch.last.t)]
            y += [share, share]
        traces.append(marks.line(x, y, style["name"], style["color"], dash=style["dash"], shape="hv", width=2))
    first, last = record.stretches[0].local_batches, record.stretches[-1].local_batches
    if record.stretches[0].version == record.stretches[-1].version:
        said = "The shares stayed as they began."
    else:
        said = f"From {_range(first)} samples a worker at the start to {_range(last)} at the end."
    more = len(record.workers) - MAX_WORKERS
    if more > 0:
        said += f" {more} further workers are not drawn."
    layout = {
        "xaxis": clock.axis(),
        "yaxis": marks.axis("samples per step"),
        "shapes": marks.bands(record.decisions, clock),
    }
    return Figure("local-batches", "Local batch per worker", said, traces, layout, height=320)


def _global_batch(record: Record, clock: marks.Clock) -> Figure | None:
    steps = list(record.steps)
    if not steps:
        return None
    x, y = _batches(record, clock)
    traces = [marks.line(x, y, "global batch", "var:series-0", shape="hv", width=2)]
    traces += marks.verdict_markers(record.decisions, clock)
    pace = [(clock(s.t), 1 / s.step_s) for s in steps if s.step_s]
    traces += marks.smoothed(pace, "steps/s", "var:series-1", axis="y2")
    layout = {
        "xaxis": clock.axis(anchor="y2"),
        "yaxis": marks.axis("samples", domain=[0.46, 1]),
        "yaxis2": marks.axis("steps/s", domain=[0, 0.38]),
        "shapes": marks.bands(record.decisions, clock),
    }
    said = f"Global batch from {y[0]:g} to {y[-1]:g} samples."
    if any(d.verdict == "trial-started" for d in record.decisions):
        said += " Shaded: a candidate on trial; the mark at its end is the verdict."
    return Figure("global-batch", "Global batch and step rate", said, traces, layout, height=420)


def _throughput(record: Record, clock: marks.Clock) -> Figure | None:
    steps = list(record.steps)
    rates = [(clock(s.t), s.samples_per_s) for s in steps if s.samples_per_s is not None]
    goodputs = [(clock(s.t), s.goodput) for s in steps if s.goodput is not None]
    if not rates and not goodputs:
        return None
    traces = marks.smoothed(rates, "samples/s", "var:series-0") + marks.smoothed(goodputs, "goodput", "var:series-2")
    said = "Goodput is samples/s weighted by how much each sample teaches at the batch in use."
    layout = {"xaxis": clock.axis(), "yaxis": marks.axis("samples/s")}
    return Figure("throughput", "Throughput and goodput", said, traces, layout)


def _learning(record: Record, clock: marks.Clock) -> list[Figure]:
    steps = [step for step in record.steps if step.loss is not None]
    measured = list(record.metrics)
    if not steps and not measured:
        return []
    names = sorted({name for m in measured for name in m.values}, key=lambda name: (name != "accuracy", name))[:4]
    figures = []
    seen = {"title": {"text": "samples seen"}, "rangemode": "tozero"}
    for key, of_step, of_metric, axis in (
        ("samples", lambda s: s.samples, lambda m: m.samples, seen),
        ("time", lambda s: clock(s.t), lambda m: clock(m.t), clock.axis()),
    ):
        traces = []
        for index, name in enumerate(names):
            points = [(of_metric(m), m.values[name]) for m in measured if name in m.values]
            trace = marks.line([p[0] for p in points], [p[1] for p in points], escape(name), f"var:series-{2 + index}")
            traces.append({**trace, "mode": "lines+markers", "marker": {"size": 6, "color": f"var:series-{2 + index}"}})
        losses = [(of_step(step), step.loss) for step in steps]
        traces += marks.smoothed(losses, "training loss", "var:series-1", axis="y2" if names else "y")
        layout: dict[str, Any] = {"xaxis": axis}
        if names:
            layout["xaxis"]["anchor"] = "y2"
            layout["yaxis"] = marks.axis("held-out", domain=[0.54, 1], rangemode="normal")
            layout["yaxis2"] = marks.axis("loss", domain=[0, 0.44])
        else:
            layout["yaxis"] = marks.axis("loss")
        said = _learnt(record, key, names)
        title = "Learning against samples" if key == "samples" else f"Learning against {clock.unit}"
        figures.append(Figure(f"learning-{key}", title, said, traces, layout, wide=False, height=380))
    return figures


def _learnt(record: Record, key: str, names: Sequence[str]) -> str:
    if key == "samples":
        return "What each sample taught: this does not depend on the speed of the devices."
    if "accuracy" in names:
        best = record.best["accuracy"]
        first = next(m for m in record.metrics if m.values.get("accuracy", -1.0) >= 0.98 * best)
        return f"What it took on the clock: 98 % of the best accuracy was there after {first.t:.0f} s."
    return "What it took on the clock."


def _compute_and_wait(record: Record, summary: Summary) -> Figure | None:
    chosen = [s for s in (summary.even, summary.settled) if s is not None]
    if not chosen:
        return None
    if len(chosen) == 2 and chosen[0] is chosen[1]:
        chosen = chosen[:1]
    names = {worker: style["name"] for worker, style in reversed(_workers(record).items())}
    traces: list[dict[str, Any]] = []
    layout: dict[str, Any] = {
        "barmode": "stack",
        "annotations": [],
        "bargap": 0.35,
        "hovermode": "closest",
        "margin": {"l": 56, "r": 12, "t": 64, "b": 42},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "top", "yref": "container"},
    }
    longest = 0.0
    for index, stretch in enumerate(chosen):
        compute, wait, comm = (worker_medians(stretch, key) for key in ("compute_s", "wait_s", "comm_s"))
        rows = [worker for worker in names if worker in compute]
        bars = [("compute", compute, "var:series-0")]
        if comm:
            bars += [("waiting for others", wait, "var:wait"), ("communicating", comm, "var:series-1")]
        else:
            bars += [("waiting for others and reducing", wait, "var:wait")]
        longest = max([longest, *(sum(seconds.get(worker, 0.0) for _, seconds, _ in bars) for worker in rows)])
        suffix = str(index + 1) if index else ""
        for label, seconds, color in bars:
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": label,
                    "legendgroup": label,
                    "showlegend": index == 0,
                    "y": [names[worker] for worker in rows],
                    "x": [round(1000 * seconds.get(worker, 0.0), 3) for worker in rows],
                    "marker": {"color": color},
                    "xaxis": f"x{suffix}",
                    "yaxis": f"y{suffix}",
                    "hovertemplate": "%{y}: %{x:.1f} ms " + label + "<extra></extra>",
                }
            )
        left, right = (0.0, 1.0) if len(chosen) == 1 else ((0.0, 0.47) if index == 0 else (0.53, 1.0))
        which = "First even plan" if stretch is summary.even else "Last plan"
        title = f"{which} ({stretch.version}): {_range(stretch.local_batches)} samples a worker"
        layout["annotations"].append(marks.panel_title(title, left))
        layout[f"xaxis{suffix}"] = {"domain": [left, right], "title": {"text": "milliseconds per step"}}
        layout[f"yaxis{suffix}"] = {
            "anchor": f"x{suffix}",
            "showticklabels": index == 0,
            "showgrid": False,
            "categoryorder": "array",
            "categoryarray": list(names.values()),
            "range": [-0.5, len(names) - 0.5],
        }
    for index in range(len(chosen)):
        layout[f"xaxis{index + 1 if index else ''}"]["range"] = [0, 1050 * longest]
    said = "Where a step's time goes; an idle worker is a bar's pale end."
    if summary.spread_before and summary.spread_after:
        said += (
            f" The slowest worker computed {summary.spread_before:.2f} × as long as the fastest under the even plan,"
            f" {summary.spread_after:.2f} × under the last plan."
        )
    height = 150 + 34 * min(MAX_WORKERS, len(names))
    return Figure("compute-wait", "Compute and wait per worker", said, traces, layout, height=height)


def _spread(record: Record, clock: marks.Clock) -> Figure | None:
    points = [(clock(s.t), s.spread) for s in record.steps if s.spread is not None]
    if not points:
        return None
    traces = marks.smoothed(points, "slowest / fastest", "var:series-3")
    layout = {"xaxis": clock.axis(), "yaxis": marks.axis("× (1 = together)", rangemode="normal")}
    said = "Compute time of the slowest worker over that of the fastest, each step."
    return Figure("spread", "Spread of compute time", said, traces, layout, wide=False)


def _batches(record: Record, clock: marks.Clock) -> tuple[list[float], list[float]]:
    """Times and global batches at both ends of each plan."""
    x, y = [], []
    for stretch in record.stretches:
        x += [clock(stretch.first.t), clock(stretch.last.t)]
        y += [stretch.global_batch, stretch.global_batch]
    return x, y


def _noise(record: Record, clock: marks.Clock) -> Figure | None:
    points = [(clock(s.t), s.noise_scale) for s in record.steps if s.noise_scale is not None and s.noise_scale > 0]
    if not points:
        return None
    batches = list(zip(*_batches(record, clock), strict=True))
    traces = [
        marks.line([p[0] for p in points], [p[1] for p in points], "noise scale", "var:series-4", width=2),
        marks.line(
            [p[0] for p in batches], [p[1] for p in batches], "global batch", "var:series-0", shape="hv", width=1.5
        ),
    ]
    values = [value for _, value in (*points, *batches) if value > 0]
    ticks = [2**power for power in range(int(log2(min(values))), int(log2(max(values))) + 2)]
    ticks = ticks[:: 1 + len(ticks) // 8]
    scale = {"type": "log", "tickmode": "array", "tickvals": ticks, "ticktext": [f"{tick:,}" for tick in ticks]}
    layout = {"xaxis": clock.axis(), "yaxis": {**marks.axis("samples", rangemode="normal"), **scale}}
    said = "Batches far below the noise scale waste time, batches far above it waste samples."
    return Figure("noise", "Gradient noise scale", said, traces, layout, wide=False)


def _workers(record: Record) -> dict[str, dict[str, str]]:
    """Name, colour and dash per worker: one colour per kind of device, one dash per worker of a kind."""
    ids = sorted(record.workers, key=lambda worker: (len(worker), worker))[:MAX_WORKERS]
    colors: dict[str, str] = {}
    count: dict[str, int] = {}
    styles = {}
    for worker in ids:
        device = record.devices.get(worker, "")
        kind = device or worker
        color = colors.setdefault(kind, f"var:series-{len(colors) % SERIES}")
        dash = DASHES[count.get(kind, 0) % len(DASHES)]
        count[kind] = count.get(kind, 0) + 1
        name = escape(f"{worker} · {device}" if device else worker)
        styles[worker] = {"name": name, "color": color, "dash": dash}
    return styles


def _range(values: Mapping[str, float]) -> str:
    numbers = sorted(values.values())
    if not numbers:
        return "no"
    return f"{numbers[0]:g}" if numbers[0] == numbers[-1] else f"{numbers[0]:g} to {numbers[-1]:g}"
