"""Which workers go when a job must shrink.

A random choice loses healthy workers while those on a node that is about to vanish stay. So what is doomed goes first,
then what has not joined yet, then the slowest; rank 0, which keeps the checkpoints, goes last. No pool is brought below
its own minimum while another can give. The workers of a pod go together, so no more pods go than must.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Live:
    """A pod with its workers that exists and is not on its way out."""

    worker_id: str
    pool: str
    draining_node: bool = False
    """Its node is cordoned, not ready, or being emptied."""
    speed: float | None = None
    """Samples per second of its own computing; None before it is known."""
    rank: int | None = None
    """Its rank (of several workers, the lowest) in the running generation; None outside."""
    devices: int = 1
    """Its workers."""


def choose_victims(
    live: Sequence[Live], count: int, pool_min: Mapping[str, int], pool_max: Mapping[str, int] | None = None
) -> list[str]:
    """Name pods with ``count`` workers to drop, and those above a pool's maximum in any case.

    The order is the same for the same input, so that a repeated decision names the same pods.
    """
    order = sorted(live, key=_urgency)
    left: Counter[str] = Counter()
    for pod in live:
        left[pod.pool] += pod.devices
    gone: list[Live] = []

    def drop(pod: Live) -> None:
        gone.append(pod)
        left[pod.pool] -= pod.devices

    for pod in order:
        if pool_max is not None and left[pod.pool] > pool_max.get(pod.pool, 0):
            drop(pod)
    certain = len(gone)
    for respect_pool_min in (True, False):
        for pod in order:
            if sum(victim.devices for victim in gone) >= count:
                break
            if pod in gone:
                continue
            if respect_pool_min and left[pod.pool] - pod.devices < pool_min.get(pod.pool, 0):
                continue
            drop(pod)
    for pod in gone[certain:]:  # a large pod that went last may have made a small one's going needless
        if sum(victim.devices for victim in gone) - pod.devices >= count:
            gone.remove(pod)
    return [pod.worker_id for pod in gone]


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
