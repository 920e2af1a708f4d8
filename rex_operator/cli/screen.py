"""Shows a run to people: a live table in a terminal, or one line at a time into a file or a pipe."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rex_operator.cli.words import decision_line, duration, in_passes, number, progress_line
from rex_operator.jobs import JobView
from rex_operator.planning import DecisionRecord

PLAIN_EVERY_S = 5.0
LIVE_EVERY_S = 0.5


class Screen(Protocol):
    """What ``rex run`` talks to."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def say(self, text: str) -> None:
        """Print one line that stays."""

    def event(self, event: str, message: str) -> None:
        """Something happened in the run."""

    def decided(self, record: DecisionRecord) -> None:
        """The planner decided something."""

    def progress(self, view: JobView, seconds: float) -> None:
        """The job as it stands."""

    def summary(self, summary: dict[str, Any]) -> None:
        """The run in figures, at its end."""


class PlainScreen:
    """Lines only; a progress line every few seconds."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(soft_wrap=True, highlight=False)
        self._shown_at = float("-inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def say(self, text: str) -> None:
        """Print one line that stays."""
        self._console.print(Text(text))

    def event(self, event: str, message: str) -> None:
        """Print what happened."""
        self.say(message)

    def decided(self, record: DecisionRecord) -> None:
        """Print the decision with its evidence."""
        self.say(decision_line(record))

    def progress(self, view: JobView, seconds: float) -> None:
        """Print a progress line, now and then."""
        if seconds - self._shown_at >= PLAIN_EVERY_S:
            self._shown_at = seconds
            self.say(progress_line(view, seconds))

    def summary(self, summary: dict[str, Any]) -> None:
        """Print the figures of the run."""
        self._console.print(summary_table(summary))


class LiveScreen(PlainScreen):
    """A table of the workers and the last decision, redrawn in place; what happens scrolls above it."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(console)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def progress(self, view: JobView, seconds: float) -> None:
        """Draw the job as it stands."""
        if seconds - self._shown_at >= LIVE_EVERY_S:
            self._shown_at = seconds
            self._live.update(Group(worker_table(view), progress_lines(view, seconds)), refresh=True)


def worker_table(view: JobView) -> Table:
    """Return a row per worker."""
    table = Table(title=f"{view.name} · {view.phase} · generation {view.generation}", title_justify="left")
    table.add_column("worker")
    table.add_column("device")
    table.add_column("state")
    for name in ("local batch", "compute ms", "wait ms", "comm ms", "step"):
        table.add_column(name, justify="right")
    for row in view.workers:
        table.add_row(
            row.worker_id,
            row.device,
            row.state,
            in_passes(row.local_batch, row.passes) if row.local_batch else "-",
            number(row.compute_s, 1e3),
            number(row.wait_s, 1e3),
            number(row.comm_s, 1e3),
            str(row.step),
        )
    return table


def progress_lines(view: JobView, seconds: float) -> Text:
    """Return the figures of the group and the last decision."""
    decision = view.planner.last_decision
    lines = [progress_line(view, seconds)]
    if view.planner.trial is not None:
        trial = view.planner.trial
        lines.append(
            f"trial: batch {trial.global_batch} x{trial.accumulation}, {trial.steps} of {trial.needed} steps,"
            f" look {trial.look}"
        )
    if decision is not None:
        lines.append(f"last decision: {decision_line(decision)}")
    return Text("\n".join(lines))


def spending(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what a run cost as rows, as far as it is known."""
    rows = []
    if summary.get("price_per_hour") is not None:
        million = number(summary["price_per_million"], digits=3)
        rows.append(
            ("price per hour, per million useful samples", f"{number(summary['price_per_hour'], digits=2)}, {million}")
        )
    if summary.get("watts") is not None:
        sample = number(summary["joules_per_sample"], digits=3)
        rows.append(("watts (modelled), joules per useful sample", f"{number(summary['watts'], digits=0)}, {sample}"))
    if summary.get("advice"):
        rows.append(("advice", summary["advice"]))
    return rows


def summary_table(summary: dict[str, Any]) -> Table:
    """Return the end of a run as a table."""
    table = Table(title=f"{summary['job']}: {summary['outcome']}", title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("value")
    table.add_row("time", duration(summary["seconds"]))
    table.add_row("steps, samples", f"{summary['step']}, {summary['samples']}")
    table.add_row("samples/s, goodput", f"{number(summary['samples_per_s'])}, {number(summary['goodput'])}")
    for name, value in spending(summary):
        table.add_row(name, escape(value))
    for name, value in summary["metrics"].items():
        table.add_row(name, f"{number(value, digits=4)} (best {number(summary['best_metrics'].get(name), digits=4)})")
    most, own = summary["accumulation"] or 1, summary["passes"]
    passes = f" in {'up to ' if own else ''}{most} passes" if most > 1 else ""
    table.add_row("global batch", f"{summary['global_batch'] or '-'}{passes}")
    shares = ", ".join(
        f"{worker} {summary['devices'].get(worker, '')} {in_passes(share, own.get(worker, most))}"
        for worker, share in summary["local_batches"].items()
    )
    table.add_row("local batches", shares)
    decided = ", ".join(f"{count} {kind}" for kind, count in summary["decisions"].items() if count)
    table.add_row("decisions", decided or "none")
    restarts = summary["restarts"]
    table.add_row("restarts", f"{restarts['charged']} charged, {restarts['not_charged']} not charged")
    return table
