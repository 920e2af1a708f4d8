"""What a step costs beside the slowest worker's computation: the sum of the gradients that backward does not hide.

Published tables tell it as ``sync_s``: from the end of the backward pass to the end of the sum. It depends on the
network of the device's machines, on how many take part, and on the micro-batch, for a longer backward hides more. In a
mixed group the sum ends when the worst placed worker's part has ended.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from rex_operator.simulation.devices import Device
from rex_operator.simulation.published.table import Table


class Communication(Protocol):
    """Seconds of communication that a step shows."""

    def seconds(self, micro_batches: Iterable[tuple[Device, float]]) -> float:
        """Return the mean seconds for a group, given as each worker's device and micro-batch in samples."""
        ...


@dataclass(frozen=True)
class Fixed:
    """The same whatever the plan."""

    each_step_s: float

    def seconds(self, micro_batches: Iterable[tuple[Device, float]]) -> float:
        """Return the mean seconds for a group."""
        return self.each_step_s


class Published:
    """By the tables of each kind of device, several machines taking part.

    Of a kind's tables the one counts whose number of replicas is nearest to the group's size (of several the one over
    most nodes). Between rows ``sync_s`` is linear in the logarithm of the micro-batch, beyond them it stays.

    Where ``sync_s`` rises with the micro-batch, the smallest value so far counts: gradients do not grow with the batch,
    and a longer backward hides more of their sum. What rises there is waiting for peers (their input, their noise) in
    the published groups, and a simulated group has its own waiting.
    """

    def __init__(self, tables: Iterable[Table]) -> None:
        self._by_kind: dict[str, list[Table]] = {}
        for table in tables:
            if table.nodes > 1:
                self._by_kind.setdefault(table.device, []).append(table)
        self._chosen: dict[tuple[str, int], _Line] = {}

    @property
    def kinds(self) -> Mapping[str, int]:
        """Kinds of device that are known, with their number of tables."""
        return {kind: len(tables) for kind, tables in self._by_kind.items()}

    def seconds(self, micro_batches: Iterable[tuple[Device, float]]) -> float:
        """Return the mean seconds for a group; nothing for a worker alone. Raises KeyError for an unknown kind."""
        group = list(micro_batches)
        if len(group) < 2:
            return 0.0
        return max(self._line(device.kind, len(group)).at(size) for device, size in group)

    def _line(self, kind: str, workers: int) -> _Line:
        line = self._chosen.get((kind, workers))
        if line is None:
            best = min(self._by_kind[kind], key=lambda t: (abs(t.replicas - workers), -t.nodes, t.placement))
            line = self._chosen[kind, workers] = _Line(best)
        return line


class _Line:
    def __init__(self, table: Table) -> None:
        self._sizes = [float(row.local_batch) for row in table.rows]
        self._syncs = list(accumulate((row.sync_s for row in table.rows), min))

    def at(self, size: float) -> float:
        sizes, syncs = self._sizes, self._syncs
        i = bisect_left(sizes, size)
        if i == 0 or i == len(sizes):
            return syncs[min(i, len(sizes) - 1)]
        part = math.log(size / sizes[i - 1]) / math.log(sizes[i] / sizes[i - 1])
        return syncs[i - 1] + part * (syncs[i] - syncs[i - 1])
