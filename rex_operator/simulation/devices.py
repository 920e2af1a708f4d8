"""How long a device takes for a micro-batch: by a formula for tests, or as somebody measured it.

A published table has some batch sizes only. Between two rows the logarithm of the time is linear in the logarithm of
the size, so that every published row is met exactly, cliffs and all. Below the smallest row the line through the two
smallest goes on, never below what is proportional to the size and never above the smallest row. Above the largest row
the device is out of memory: that is where the measurements were bounded too.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Protocol

from rex_operator.simulation.published.table import Table


class Device(Protocol):
    """What a worker runs on."""

    @property
    def kind(self) -> str:
        """Devices of one kind are equally fast."""
        ...

    @property
    def most(self) -> int | None:
        """Largest micro-batch that it takes, told to the planner; None: any, or that is for the planner to find out."""
        ...

    def seconds(self, samples: float) -> float:
        """Return the mean seconds of forward and backward over a micro-batch."""
        ...


@dataclass(frozen=True)
class Bent:
    """Seconds per micro-batch of b samples: fixed + each * b, bent below ``knee`` samples, where the device is idle."""

    kind: str
    fixed: float
    each: float
    knee: float = 0.0
    most: int | None = None

    def seconds(self, samples: float) -> float:
        """Return the mean seconds of forward and backward over a micro-batch."""
        beyond = samples - self.knee
        return self.fixed + self.each * (math.hypot(beyond, self.knee) + beyond) / 2


class Tabled:
    """A device as published."""

    def __init__(self, table: Table) -> None:
        """Take a table of one GPU alone, of two rows at least."""
        if table.replicas != 1 or len(table.rows) < 2:
            raise ValueError(f"{table.source}, {table.model}: not two batches or more of one GPU alone")
        self.kind = table.device
        self._sizes = [float(row.local_batch) for row in table.rows]
        self._times = [row.step_s - row.sync_s for row in table.rows]
        self._slope = max(0.0, (self._times[1] - self._times[0]) / (self._sizes[1] - self._sizes[0]))

    @property
    def most(self) -> int:
        """Largest micro-batch that fits in its memory."""
        return int(self._sizes[-1])

    def seconds(self, samples: float) -> float:
        """Return the mean seconds of forward and backward over a micro-batch. Raises ValueError above ``most``."""
        sizes, times = self._sizes, self._times
        if samples <= sizes[0]:
            smallest = times[0]
            return max(smallest - self._slope * (sizes[0] - samples), smallest * samples / sizes[0])
        if samples > sizes[-1]:
            raise ValueError(f"{samples:g} samples: {self.kind} holds {self.most}")
        i = bisect_left(sizes, samples)
        part = math.log(samples / sizes[i - 1]) / math.log(sizes[i] / sizes[i - 1])
        return times[i - 1] * math.pow(times[i] / times[i - 1], part)
