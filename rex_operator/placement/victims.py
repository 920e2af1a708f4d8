"""Which workers go when a job must shrink.

A random choice loses healthy workers while those on a node that is about to vanish stay. So what is doomed goes first,
then what has not joined yet, then the slowest; rank 0, which keeps the checkpoints, goes last. No pool is brought below
its own minimum while another can give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Live:
    """A worker that exists and is not on its way out."""

    worker_id: str
    pool: str
    draining_node: bool = False
    """Its node is cordoned, not ready, or being emptied."""
    speed: float | None = None
    """Samples per second of its own computing; None before it is known."""
    rank: int | None = None
    """Its rank in the running generation; None outside."""


def choose_victims(
    live: Sequence[Live], count: int, pool_min: Mapping[str, int], pool_max: Mapping[str, int] | None = None
) -> list[str]:
    """Name ``count`` workers to drop, and those above a pool's maximum in any case.

    The order is the same for the same input, so that a repeated decision names the same workers.
    """
    order = sorted(live, key=_urgency)
    left = Counter(worker.pool for worker in live)
    gone: list[str] = []

    def drop(worker: Live) -> None:
        gone.append(worker.worker_id)
        left[worker.pool] -= 1

    for worker in order:
        if pool_max is not None and left[worker.pool] > pool_max.get(worker.pool, 0):
            drop(worker)
    for respect_pool_min in (True, False):
        for worker in order:
            if len(gone) >= count:
                return gone
            if worker.worker_id in gone:
                continue
            if respect_pool_min and left[worker.pool] <= pool_min.get(worker.pool, 0):
                continue
            drop(worker)
    return gone


def _urgency(worker: Live) -> tuple[bool, bool, bool, float, int, str]:
    number = worker.worker_id.removeprefix("w")
    return (
        not worker.draining_node,
        worker.rank == 0,
        worker.rank is not None,
        worker.speed if worker.speed is not None else 0.0,
        -int(number) if number.isdigit() else 0,
        worker.worker_id,
    )
