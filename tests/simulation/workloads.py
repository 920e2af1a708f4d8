"""A small published-like workload, made here, so that tests need no published data."""

from __future__ import annotations

import numpy as np

from rex_operator.simulation.published.pollux import Trajectory
from rex_operator.simulation.published.table import Row, Table
from rex_operator.simulation.workload import Workload, workload

SPEEDS = {"t4": 1.0, "v100": 0.45, "a100": 0.25}
SIZES = (4, 8, 16, 32, 64, 128)


def tables(model: str = "net") -> list[Table]:
    """Return tables of devices with a fixed and a proportional part, alone and on two machines."""
    found = []
    for kind, speed in SPEEDS.items():
        rows = tuple(Row(b, 0.02 + 0.004 * speed * b + 0.001, 0.001) for b in SIZES)
        together = tuple(Row(b, row.step_s + 0.01, 0.011) for b, row in zip(SIZES, rows, strict=True))
        found.append(Table("sia/placements-made", model, kind, 1, 1, "1", rows))
        found.append(Table("sia/placements-made", model, kind, 2, 4, "22", together))
    return found


def runs(model: str = "net") -> list[Trajectory]:
    """Return a run at batch 32 and its larger siblings; the noise scale grows from 100 to 10,000 samples."""
    progress = np.linspace(1000.0, 20_000.0, 20)
    noise = np.geomspace(100.0, 10_000.0, 20)
    return [Trajectory(model, 32, b, progress, progress * 32 / b, progress, noise) for b in (32, 64, 512)]


def work(kinds: tuple[str, ...] = ("t4", "v100", "a100"), steps: int = 600) -> Workload:
    """Return a job of some hundred steps."""
    return workload("net", kinds, tables(), runs(), steps)
