"""A comparison that was cut off goes on where it was: what has ended is not run again, and nothing is read wrongly."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import policies
from benchmarks._cells import Cell, Outcome, Task
from benchmarks._kept import BadLine, keep, kept
from rex_operator.simulation.run import Result
from tests.published import needs_data, published

CELL = Cell("net", "1 of each", "static")
TASKS = [Task(CELL, policy, seed, 100, Path("data")) for policy in ("rex", "even") for seed in range(2)]


def result(seconds: float) -> Result:
    return Result(seconds, True, 100, 6400, 6400.0, 64, {"membership": 1}, 300, 0)


def test_what_was_kept_is_read_again_and_the_last_of_two_counts(tmp_path: Path) -> None:
    file = tmp_path / "grid.jsonl"
    assert kept(file, TASKS) == {}
    for task, seconds in ((TASKS[0], 1.5), (TASKS[2], 2.5), (TASKS[0], 1.0)):
        keep(file, Outcome(task, result(seconds)))
    assert kept(file, TASKS) == {TASKS[0]: Outcome(TASKS[0], result(1.0)), TASKS[2]: Outcome(TASKS[2], result(2.5))}
    assert kept(file, TASKS[1:2]) == {}
    other_steps = [Task(CELL, "rex", 0, 200, Path("data"))]
    assert kept(file, other_steps) == {}


def test_a_job_that_failed_is_run_again(tmp_path: Path) -> None:
    keep(tmp_path / "grid.jsonl", Outcome(TASKS[0], None, "BrokenPromise: shares sum to 63, not to 64"))
    assert kept(tmp_path / "grid.jsonl", TASKS) == {}


def test_a_line_cut_short_by_a_kill_is_dropped_and_the_next_one_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "grid.jsonl"
    keep(file, Outcome(TASKS[0], result(1.0)))
    with file.open("a") as lines:
        lines.write('{"model": "ne')
    assert list(kept(file, TASKS)) == [TASKS[0]]
    keep(file, Outcome(TASKS[1], result(2.0)))
    assert list(kept(file, TASKS)) == TASKS[:2]


@pytest.mark.parametrize("line", ["not JSON", "[1, 2]", '{"model": "net"}'])
def test_what_is_no_outcome_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "grid.jsonl"
    keep(file, Outcome(TASKS[0], result(1.0)))
    with file.open("a") as lines:
        lines.write(line + "\n")
    with pytest.raises(BadLine, match=r"grid\.jsonl, line 2: not an outcome of this benchmark"):
        kept(file, TASKS)


@needs_data
def test_a_comparison_runs_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "grid.jsonl"

    def compare(*names: str) -> dict[str, object]:
        grid = ["--steps", "60", "--seeds", "1", "--jobs", "1", "--resume", str(file), "--data", str(published())]
        cell = ["--model", "cifar10", "--mix", "1 of each", "--scenario", "static", "--policy", *names]
        monkeypatch.setattr(sys, "argv", ["policies", *grid, *cell])
        assert policies.main() == 0
        return dict(json.loads(capsys.readouterr().out.splitlines()[-1]))

    compare("even")
    (line,) = file.read_text().splitlines()
    assert (json.loads(line)["policy"], json.loads(line)["seed"], json.loads(line)["steps"]) == ("even", 0, 60)
    marked = json.loads(line)
    marked["result"]["seconds"] = 12345.0
    file.write_text(json.dumps(marked) + "\n")
    found = compare("even", "boa")
    assert {row["policy"]: row["seconds"] for row in found["cells"]}["even"] == 12345.0  # type: ignore[attr-defined]
    assert len(file.read_text().splitlines()) == 2
