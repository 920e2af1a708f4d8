"""Zeus's power traces: watts and epoch times of training jobs on one GPU, by batch size and power limit.

J. You, J.-W. Chung, M. Chowdhury, "Zeus: Understanding and optimizing GPU energy consumption of DNN training", NSDI
2023; data: github.com/ml-energy/zeus, files ``summary_power_DEVICE.csv`` (V100, P100, A40, RTX 6000), columns dataset,
network, batch_size, optimizer, power_limit, time_per_epoch (seconds) and average_power (watts).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from rex_operator.simulation.published.reading import folder_with, lines

_COLUMNS = ("dataset", "network", "batch_size", "optimizer", "power_limit", "time_per_epoch", "average_power")


@dataclass(frozen=True, slots=True)
class Drawn:
    """One measured batch."""

    batch: int
    epoch_s: float
    watts: float
    """Average over the epoch."""


@dataclass(frozen=True, slots=True)
class PowerProfile:
    """One job on one GPU at one power limit."""

    device: str
    job: str
    """dataset/network/optimizer"""
    limit: float
    """Watts."""
    rows: tuple[Drawn, ...]
    """Ascending in ``batch``, each once."""


def profiles(folder: Path) -> list[PowerProfile]:
    """Return a profile per device, job and power limit, in the files' order. Raises ``BadData``."""
    found = []
    for path in folder_with(folder, "summary_power_*.csv", "Zeus's traces"):
        rows: dict[tuple[str, float], dict[int, Drawn]] = defaultdict(dict)
        for line in lines(path, _COLUMNS):
            job = "/".join(line.cells[column] for column in ("dataset", "network", "optimizer"))
            limit, batch = line.number_of("power_limit", above=0), line.count_of("batch_size")
            if batch in rows[job, limit]:
                raise line.wrong(f"batch {batch} of {job} at {limit:g} W stands there twice")
            rows[job, limit][batch] = Drawn(
                batch, line.number_of("time_per_epoch", above=0), line.number_of("average_power", above=0)
            )
        device = path.stem.removeprefix("summary_power_")
        found += [
            PowerProfile(device, job, limit, tuple(batches[b] for b in sorted(batches)))
            for (job, limit), batches in rows.items()
        ]
    return found


def unlimited(found: list[PowerProfile]) -> list[PowerProfile]:
    """Return the profiles at each device's highest limit, at which devices are usually run."""
    highest: dict[str, float] = defaultdict(float)
    for profile in found:
        highest[profile.device] = max(highest[profile.device], profile.limit)
    return [profile for profile in found if profile.limit == highest[profile.device]]
