"""What ``benchmarks.elastic`` knows of a run: the steps that each process wrote down, and what they amount to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Row:
    """One step as one process ran it; ``after`` equals ``before`` when it could not be applied."""

    at: float
    before: int
    after: int
    generation: int
    version: int

    @property
    def applied(self) -> bool:
        """Whether the optimiser acted."""
        return self.after > self.before


@dataclass(frozen=True)
class Measured:
    """One event. ``held_s``: the longest pause of a survivor on the way."""

    name: str
    seconds: float
    held_s: float
    lost: int


class Lines:
    """Reads what files in a folder, or one file, gain in whole lines of JSON."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: dict[Path, int] = {}

    def fresh(self) -> Iterable[tuple[str, Any]]:
        """Yield (file name, line) for what is new."""
        for file in sorted(self._path.iterdir()) if self._path.is_dir() else [self._path]:
            if not file.exists():
                continue
            with file.open("rb") as source:
                source.seek(self._read.get(file, 0))
                whole, _, _ = source.read().rpartition(b"\n")
            if whole:
                self._read[file] = self._read.get(file, 0) + len(whole) + 1
                yield from ((file.name, json.loads(line)) for line in whole.splitlines())


class Ledger:
    """Steps of all processes, by process id."""

    def __init__(self, folder: Path) -> None:
        self._lines = Lines(folder)
        self.rows: dict[int, list[Row]] = {}

    def read(self) -> None:
        """Take in what is new."""
        for name, row in self._lines.fresh():
            self.rows.setdefault(int(name.partition("-")[2]), []).append(Row(*row))

    def first(self, pid: int, wanted: Callable[[Row], bool]) -> Row | None:
        """The first applied step of a process that is ``wanted``."""
        return next((row for row in self.rows.get(pid, ()) if row.applied and wanted(row)), None)

    def held_s(self, pid: int, begin: float, end: float) -> float:
        """The longest time between two applied steps of which some lies within the span."""
        ends = [row.at for row in self.rows[pid] if row.applied]
        return max((b - a for a, b in pairwise(ends) if b > begin and a < end), default=0.0)

    def lost(self, pid: int, begin: float, end: float) -> int:
        """Steps that a process did in vain or twice within the span."""
        rows = [row for row in self.rows[pid] if row.at <= end]
        before = {row.after for row in rows if row.applied and row.at < begin}
        void = sum(not row.applied for row in rows if row.at >= begin)
        return void + sum(row.applied and row.after in before for row in rows if row.at >= begin)
