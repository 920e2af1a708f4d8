"""Pollux's profiles: six models on T4s, and how the noise of their gradients grew while they trained.

A. Qiao et al., "Pollux: Co-adaptive cluster scheduling for goodput-optimized deep learning", OSDI 2021; data:
github.com/petuum/adaptdl, branch osdi21-artifact, folder simulator.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rex_operator.simulation.published import placements
from rex_operator.simulation.published.reading import BadData, folder_with, lines
from rex_operator.simulation.published.table import Table

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One published training run, a value per epoch in each array."""

    model: str
    base_batch: int
    """The batch that progress is counted in: the smallest that was run."""
    batch: int
    """Of this run."""
    progress: Values
    """Iterations of the base batch that were worth as much as what had been done, at the end of the epoch."""
    iteration: Values
    """Iterations done."""
    metric: Values
    """The model's own measure of quality."""
    noise_scale: Values
    """base batch x variance / squared norm of the gradient, in samples; the variance is told at the base batch.

    Infinite where the squared norm was estimated as 0.
    """


def tables(folder: Path) -> list[Table]:
    """Return all tables of the folder that holds ``traces/MODEL/placements.csv``. Raises ``BadData``."""
    found = []
    for kind in ("placements", "scalability"):
        for path in folder_with(folder, f"traces/*/{kind}.csv", "Pollux's traces"):
            found += placements.read(path, f"pollux/{kind}", path.parent.name, "t4")
    return found


def trajectories(folder: Path) -> list[Trajectory]:
    """Return the published runs, by model and ascending batch. Raises ``BadData``."""
    runs: dict[str, dict[int, Path]] = defaultdict(dict)
    for path in folder_with(folder, "traces/*/validation-*.csv", "Pollux's traces"):
        match = re.fullmatch(r"validation-(\d+)", path.stem)
        if match is None or int(match[1]) < 1:
            raise BadData(f"{path}: the name is not validation-BATCH.csv")
        runs[path.parent.name][int(match[1])] = path
    return [
        _trajectory(path, model, min(batches), batch)
        for model, batches in sorted(runs.items())
        for batch, path in sorted(batches.items())
    ]


def _trajectory(path: Path, model: str, base_batch: int, batch: int) -> Trajectory:
    progress: list[float] = []
    iteration: list[float] = []
    metric, noise = [], []
    for line in lines(path, ["progress", "iteration", "metric", "grad_sqr", "grad_var"]):
        progress.append(line.number_of("progress", above=progress[-1] if progress else 0.0))
        iteration.append(line.number_of("iteration", above=iteration[-1] if iteration else 0.0))
        metric.append(line.number_of("metric"))
        squared, variance = line.number_of("grad_sqr", least=0.0), line.number_of("grad_var", least=0.0)
        noise.append(base_batch * variance / squared if squared else math.inf)
    if not progress:
        raise BadData(f"{path}: no epochs")
    return Trajectory(
        model, base_batch, batch, np.array(progress), np.array(iteration), np.array(metric), np.array(noise)
    )
