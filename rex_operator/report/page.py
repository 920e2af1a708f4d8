"""One self-contained page about a run: opens offline, from a mail or a file share, years later.

Everything is inside the file, plotly's own script too, and the page forbids itself the network. What came from the run
is escaped on its way in: as HTML in text, as JSON without ``<`` in data.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from plotly.offline.offline import get_plotlyjs

from rex_operator import __version__
from rex_operator.report.figure import Figure
from rex_operator.report.figures import draw
from rex_operator.report.reader import read_record
from rex_operator.report.record import MAX_WORKERS, Record
from rex_operator.report.summary import Summary, summarise
from rex_operator.report.tables import clock, decisions_section, happenings_section


def write_report(run_dir: Path) -> Path:
    """Read ``record.jsonl`` of a run and write ``report.html`` beside it; return the page's path.

    A torn or foreign line is set aside, never an error. Raises ``OSError`` when the record cannot be read or the page
    cannot be written; the page appears whole or not at all.
    """
    record = read_record(run_dir / "record.jsonl")
    target = run_dir / "report.html"
    unfinished = target.with_suffix(".html.part")
    unfinished.write_text(render(record, record.name or run_dir.resolve().name), encoding="utf-8")
    unfinished.replace(target)
    return target


def render(record: Record, name: str) -> str:
    """Return the page of a record as HTML."""
    summary = summarise(record)
    figures = draw(record, summary)
    here = files("rex_operator.report")
    state, label = _state(record)
    return Template(here.joinpath("page.html").read_text(encoding="utf-8")).substitute(
        title=f"{escape(name)} – REX run report",
        name=escape(name),
        state=state,
        state_label=label,
        lede=_lede(record, summary),
        tiles="".join(_tiles(record, summary)),
        figures="\n".join(_figure(figure) for figure in figures),
        decisions=decisions_section(record.decisions, record.left_out),
        happenings=happenings_section(record.happenings),
        footer=_footer(record),
        data=_data(figures),
        css=here.joinpath("report.css").read_text(encoding="utf-8"),
        plotly=_plotly().replace("</script", "<\\/script"),
        script=here.joinpath("report.js").read_text(encoding="utf-8"),
    )


def _state(record: Record) -> tuple[str, str]:
    if record.success is None:
        return "unfinished", "Not finished"
    if record.success:
        return "succeeded", "Succeeded"
    if record.reason == "Interrupted":
        return "unfinished", "Interrupted"
    return "failed", escape(record.reason[:40]) or "Failed"


def _lede(record: Record, summary: Summary) -> str:
    group = f"{len(record.workers)} worker" + ("" if len(record.workers) == 1 else "s")
    kinds: dict[str, int] = {}
    for worker in record.workers:
        if device := record.devices.get(worker):
            kinds[device] = kinds.get(device, 0) + 1
    mix = ", ".join(f"{count} × {escape(kind)}" for kind, count in kinds.items())
    sentence = f"{group}{f' ({mix})' if mix else ''} trained {summary.steps:,} steps in {_long(record.duration_s)}."
    if record.message:
        said = record.message[:1].upper() + record.message[1:]
        sentence += f" {escape(said)}" + ("" if said.endswith((".", "!", "?")) else ".")
    return sentence


def _tiles(record: Record, summary: Summary) -> list[str]:
    tiles = [_tile("Duration", *_duration(record.duration_s), f"{summary.steps:,} steps")]
    tiles.append(_tile("Samples", *_count(summary.samples), "the clock of schedules and progress"))
    if summary.accuracy is not None and summary.best_accuracy is not None:
        note = f"held out; best {100 * summary.best_accuracy:.2f} %"
        tiles.append(_tile("Accuracy", f"{100 * summary.accuracy:.2f}", "%", note))
    elif summary.loss is not None:
        tiles.append(_tile("Loss", f"{summary.loss:.4g}", "", "last training step"))
    if summary.speed_up is not None:
        note = "samples/s, last plan against the first even one"
        tiles.append(_tile("Speed-up", f"{summary.speed_up:.2f}", "×", note))
    if summary.spread_after is not None and summary.spread_before is not None:
        note = f"slowest / fastest compute; {summary.spread_before:.2f} under the even plan"
        tiles.append(_tile("Spread", f"{summary.spread_after:.2f}", "×", note))
    told = ("accepted", "rejected", "inconclusive", "rebalanced")
    counts = [f"{summary.verdicts[verdict]} {verdict}" for verdict in told if summary.verdicts.get(verdict)]
    tiles.append(_tile("Plan changes", f"{summary.plan_changes:,}", "", ", ".join(counts) or "no trial was judged"))
    return tiles


def _tile(label: str, figure: str, unit: str, note: str) -> str:
    suffix = f'<span class="unit">{unit}</span>' if unit else ""
    return (
        f'<div class="tile"><dt>{label}</dt><dd class="figure">{figure}{suffix}</dd><dd class="note">{note}</dd></div>'
    )


def _figure(figure: Figure) -> str:
    wide = " wide" if figure.wide else ""
    title = f"title-{figure.id}"
    return f"""<figure class="card{wide}" aria-labelledby="{title}">
<figcaption><h2 id="{title}">{figure.title}</h2><p>{escape(figure.takeaway)}</p></figcaption>
<div class="plot" id="plot-{figure.id}" role="img" aria-label="Plot: {escape(figure.title)}. {escape(figure.takeaway)}"
 style="height:{figure.height}px"></div></figure>"""


def _footer(record: Record) -> str:
    parts = [f"REX {escape(__version__)}", f"{record.lines:,} lines read"]
    if record.set_aside:
        parts.append(f"{record.set_aside:,} unreadable lines set aside")
    if record.steps.seen > len(record.steps):
        parts.append(f"{len(record.steps):,} of {record.steps.seen:,} recorded steps drawn, evenly spread")
    if len(record.workers) > MAX_WORKERS:
        parts.append(f"{MAX_WORKERS} of {len(record.workers):,} workers drawn")
    return " · ".join(parts)


def _plotly() -> str:
    script: str = get_plotlyjs()  # type: ignore[no-untyped-call]
    return script


def _data(figures: Sequence[Figure]) -> str:
    plain = [{"id": f.id, "traces": f.traces, "layout": f.layout, "height": f.height} for f in figures]
    text = json.dumps(plain, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _duration(seconds: float) -> tuple[str, str]:
    return (f"{seconds:.1f}", "s") if seconds < 60 else (clock(seconds), "min" if seconds < 3600 else "h")


def _long(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else f"{clock(seconds)} {'min' if seconds < 3600 else 'h'}"


def _count(value: int) -> tuple[str, str]:
    for size, unit in ((10**9, "G"), (10**6, "M")):
        if value >= size:
            return f"{value / size:.2f}", unit
    return f"{value:,}", ""
