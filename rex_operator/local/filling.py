"""Which workers a job gets on one machine: pools in the order in which they are listed, each up to its maximum.

In a cluster, placement decides by what is free; here every pool is emulated, so all of it is free, and the manifest's
own order says what the user would like best. What a pool must have at least comes first. Of a pod with several devices
only the names remain: each of its workers is a process like any other.
"""

from __future__ import annotations

from dataclasses import dataclass

from rex_operator.api import Pool, RexJobSpec
from rex_worker.pod import worker_names


@dataclass(frozen=True)
class Seat:
    """One worker to be run: its stable id and the pool whose device it plays."""

    worker_id: str
    pool: Pool


def fill(spec: RexJobSpec) -> list[Seat]:
    """Return the workers of the job, ``workers.max`` of them or as many as whole pods of the pools make."""
    counts = spec.filled()
    pods = [pool for pool in spec.pools for _ in range(counts[pool.name] // pool.devices_per_pod)]
    return [
        Seat(name, pool)
        for number, pool in enumerate(pods)
        for name in worker_names(f"w{number}", pool.devices_per_pod)
    ]
