"""Outcomes of a long comparison in a file, so that it can be run in parts and a killed one is not lost.

One JSON line per job, appended when it ends. A line that a kill cut short is dropped; jobs that failed are run again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from benchmarks._cells import Cell, Outcome, Task
from rex_operator.simulation.run import Result


class BadLine(ValueError):
    """A line of the file is not an outcome; the message says which one."""


def keep(file: Path, outcome: Outcome) -> None:
    """Append an outcome."""
    task = outcome.task
    line = {
        **asdict(task.cell),
        "policy": task.policy,
        "seed": task.seed,
        "steps": task.steps,
        "result": None if outcome.result is None else asdict(outcome.result),
        "failure": outcome.failure,
    }
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(line) + "\n")


def kept(file: Path, tasks: Iterable[Task]) -> dict[Task, Outcome]:
    """Return the outcomes of those tasks that ended well before; of several the last. Raises ``BadLine``."""
    if not file.exists():
        return {}
    text = file.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        file.write_text(whole, encoding="utf-8")
    of = {(task.cell, task.policy, task.seed, task.steps): task for task in tasks}
    found = {}
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            entry = json.loads(line)
            cell = Cell(entry["model"], entry["mix"], entry["scenario"])
            task = of.get((cell, entry["policy"], entry["seed"], entry["steps"]))
            result = None if entry["result"] is None else Result(**entry["result"])
        except (ValueError, KeyError, TypeError) as error:
            raise BadLine(
                f"{file}, line {number}: not an outcome of this benchmark ({type(error).__name__}: {error}); take the"
                " line out, or name another file"
            ) from None
        if task is not None and result is not None:
            found[task] = Outcome(task, result)
    return found
