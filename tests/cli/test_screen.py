"""What people see while a job runs: every figure that the job is judged by, and the evidence of the last decision."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from rex_operator.cli.screen import LiveScreen, PlainScreen, spending
from rex_operator.cli.words import decision_line, duration
from rex_operator.jobs import JobView
from rex_operator.local.summary import Tally, summarize
from rex_worker.protocol import Metrics, Ready
from tests.cli.test_explain import DECISION
from tests.jobs.desk import running


def training() -> JobView:
    desk = running("w0", "w1")
    desk.say("w0", Ready(total_samples=6400))
    for step in range(1, 51):
        desk.now += 0.06
        desk.run("w0", "w1", step=step)
    desk.say("w0", Metrics(step=50, samples=3200, values={"accuracy": 0.91}))
    desk.coordinator.planner.decisions.append(DECISION)
    return desk.coordinator.view()


def shown(screen_type: type[PlainScreen]) -> str:
    out = io.StringIO()
    screen = screen_type(Console(file=out, width=200, force_terminal=screen_type is LiveScreen, color_system=None))
    with screen:
        screen.progress(training(), 10.0)
        screen.event("hint", "a worker is late")
        screen.decided(DECISION)
    return out.getvalue()


@pytest.mark.parametrize("screen_type", [PlainScreen, LiveScreen])
def test_the_figures_of_the_job(screen_type: type[PlainScreen]) -> None:
    text = shown(screen_type)
    for words in ("Running", "step 50 (50%)", "2 workers", "batch 64", "plan 1", "samples/s", "goodput", "loss 1.0000"):
        assert words in text
    assert "accuracy 0.9100" in text
    assert "a worker is late" in text
    assert "p better 0.00014" in text


def test_the_live_screen_has_a_row_per_worker() -> None:
    text = shown(LiveScreen)
    for words in ("w0", "w1", "a100", "local batch", "compute ms", "wait ms", "comm ms", "32", "50.0", "10.0"):
        assert words in text


def test_progress_lines_do_not_flood() -> None:
    out = io.StringIO()
    screen = PlainScreen(Console(file=out, width=200))
    view = training()
    for tick in range(400):
        screen.progress(view, tick * 0.25)
    assert len(out.getvalue().splitlines()) == 20


def test_a_decision_in_one_line() -> None:
    line = decision_line(DECISION)
    assert line.startswith("step 280: accepted: 64 -> 128. batch 128 is better.")
    assert "effect +50.0%, windows 79/82 steps, look 1" in line


def test_the_summary() -> None:
    tally = Tally()
    tally.decision(DECISION)
    tally.metrics({"accuracy": 0.95})
    out = io.StringIO()
    figures = summarize(training(), tally, seconds=152.0, restarts=(1, 0), outcome="succeeded", message="done")
    PlainScreen(Console(file=out, width=120)).summary(figures)
    text = out.getvalue()
    for words in ("2 min 32 s", "50, 3200", "0.9100 (best 0.9500)", "1 accepted", "1 charged", "w0 a100 32"):
        assert words in text


def test_passes_are_told_of_each_worker() -> None:
    view = training()
    assert view.plan is not None
    plan = view.plan.model_copy(update={"accumulation": 4, "passes": {"w1": 2}})
    rows = tuple(replace(row, passes=plan.passes_of(row.worker_id)) for row in view.workers)
    view, out = replace(view, plan=plan, workers=rows), io.StringIO()
    figures = summarize(view, Tally(), seconds=1.0, restarts=(0, 0), outcome="succeeded", message="")
    PlainScreen(Console(file=out, width=120)).summary(figures)
    assert "64 in up to 4 passes" in out.getvalue()
    assert "w0 a100 32/4, w1 a100 32/2" in out.getvalue()
    with LiveScreen(Console(file=out, width=200, force_terminal=True, color_system=None)) as screen:
        screen.progress(view, 10.0)
    assert "32/4" in out.getvalue().partition("local batch")[2]


@pytest.mark.parametrize(
    ("seconds", "says"), [(0.4, "0 s"), (59.6, "1 min 00 s"), (61, "1 min 01 s"), (3725, "1 h 02 min")]
)
def test_durations_as_people_say_them(seconds: float, says: str) -> None:
    assert duration(seconds) == says


def test_what_a_run_costs_is_told_where_it_is_known() -> None:
    figures = summarize(training(), Tally(), seconds=1.0, restarts=(0, 0), outcome="succeeded", message="")
    assert spending(figures) == []
    figures |= {"price_per_hour": 7.2, "price_per_million": 1.0, "watts": 640.4, "joules_per_sample": 0.05}
    figures["advice"] = "Without w3 a useful sample costs 12% less: set pools[t4].maxWorkers to 0."
    assert [value for _, value in spending(figures)] == [
        "7.20, 1.000",
        "640, 0.050",
        "Without w3 a useful sample costs 12% less: set pools[t4].maxWorkers to 0.",
    ]
    out = io.StringIO()
    PlainScreen(Console(file=out, width=200)).summary(figures)
    assert "pools[t4].maxWorkers to 0" in out.getvalue()
