"""Reading other people's CSV: a wrong cell must be named by file, line and column, not by a traceback."""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


class BadData(ValueError):
    """Published data that are not in the format that their reader knows; the message says where and what is wrong."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a CSV file."""

    path: Path
    number: int
    """Counted from 1, the header being line 1."""
    cells: Mapping[str, str]

    def wrong(self, what: str) -> BadData:
        """Return the error that names this line."""
        return BadData(f"{self.path}, line {self.number}: {what}")

    def number_of(self, column: str, *, least: float = -math.inf, above: float = -math.inf) -> float:
        """Return a finite number, at least ``least`` and larger than ``above``."""
        text = self.cells[column]
        try:
            value = float(text)
        except ValueError:
            raise self.wrong(f"{column} is {text!r}, not a number") from None
        if not math.isfinite(value) or value < least or value <= above:
            bound = f"above {above:g}" if above > -math.inf else f"of at least {least:g}" if least > -math.inf else ""
            raise self.wrong(f"{column} is {text}, not a finite number {bound}".rstrip())
        return value

    def count_of(self, column: str, *, least: int = 1) -> int:
        """Return a whole number of at least ``least``."""
        value = self.number_of(column, least=least)
        if value != int(value):
            raise self.wrong(f"{column} is {self.cells[column]}, not a whole number")
        return int(value)


def lines(path: Path, columns: Sequence[str]) -> Iterator[Line]:
    """Return the lines of a CSV file, plain or gzipped, which has at least these columns. Raises ``BadData``."""
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as text:
        reader = csv.DictReader(text)
        header = reader.fieldnames or ()
        missing = [column for column in columns if column not in header]
        if missing:
            raise BadData(f"{path}, line 1: no column {', '.join(missing)}; there are {', '.join(header) or 'none'}")
        for cells in reader:
            line = Line(path, reader.line_num, cells)
            if None in cells or None in cells.values():
                raise line.wrong(f"not {len(header)} cells, as the header has")
            yield line


def folder_with(folder: Path, pattern: str, what: str) -> list[Path]:
    """Return the files that match, sorted. Raises ``BadData`` where there are none: another folder was named."""
    found = sorted(folder.glob(pattern))
    if not found:
        raise BadData(f"{folder}: no {pattern} there; name the folder with {what}")
    return found
