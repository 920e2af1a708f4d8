"""LBB's records: every iteration of three or four unequal GPUs, the only published series of that kind.

"LBB: load-balanced batching for efficient distributed learning on heterogeneous GPU cluster", J. Supercomputing 80(9),
2024; data: github.com/FLYING37520/LBB, folder record (without a licence: test input only), as CSV.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rex_operator.simulation.published.reading import BadData, folder_with, lines

Values = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Record:
    """One run. Arrays have a row per iteration; those of workers a column per GPU."""

    name: str
    """The file's name without its ending."""
    epoch: Counts
    iteration: Counts
    """Within the epoch, from 0."""
    compute_s: Values
    """Seconds, rounded to 1 ms by the source."""
    comm_s: Values
    """Seconds of communication and waiting for the others."""
    batch: Counts
    """Samples per GPU."""

    @property
    def tuned(self) -> bool:
        """Whether LBB moved the shares while it ran."""
        return "_tuned_" in self.name

    @property
    def disturbed(self) -> bool:
        """Whether load was injected."""
        return "_disturbed_" in self.name

    @property
    def step_s(self) -> Values:
        """Seconds of each iteration of the group."""
        longest: Values = np.max(self.compute_s + self.comm_s, axis=1)
        return longest


def records(folder: Path) -> list[Record]:
    """Return all records of a folder (``*.csv`` or ``*.csv.gz``), by name. Raises ``BadData``."""
    return [_record(path) for path in folder_with(folder, "*.csv*", "LBB's records as CSV")]


def _record(path: Path) -> Record:
    found = list(lines(path, ["epoch", "iteration", "compute_s_0", "comm_s_0", "batch_0"]))
    if not found:
        raise BadData(f"{path}: no iterations")
    workers = sum(name.startswith("compute_s_") for name in found[0].cells)
    for name in (f"{kind}_{i}" for kind in ("comm_s", "batch") for i in range(workers)):
        if name not in found[0].cells:
            raise BadData(f"{path}, line 1: no column {name} for {workers} GPUs")

    def values(kind: str) -> Values:
        return np.array([[line.number_of(f"{kind}_{i}", least=0.0) for i in range(workers)] for line in found])

    return Record(
        name=path.name.removesuffix(".gz").removesuffix(".csv"),
        epoch=np.array([line.count_of("epoch", least=0) for line in found]),
        iteration=np.array([line.count_of("iteration", least=0) for line in found]),
        compute_s=values("compute_s"),
        comm_s=values("comm_s"),
        batch=np.array([[line.count_of(f"batch_{i}", least=0) for i in range(workers)] for line in found]),
    )
