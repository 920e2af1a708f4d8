"""Which workers a job gets on one machine: pools in the order in which they are listed, each up to its maximum.

In a cluster, placement decides by what is free; here every pool is emulated, so all of it is free, and the manifest's
own order says what the user would like best. What a pool must have at least comes first.
"""

from __future__ import annotations

from dataclasses import dataclass

from rex_operator.api import Pool, RexJobSpec


@dataclass(frozen=True)
class Seat:
    """One worker to be run: its stable id and the pool whose device it plays."""

    worker_id: str
    pool: Pool


def fill(spec: RexJobSpec) -> list[Seat]:
    """Return the workers of the job, ``workers.max`` of them or as many as the pools allow."""
    counts = {pool.name: pool.min_workers for pool in spec.pools}
    free = spec.workers.max - sum(counts.values())
    for pool in spec.pools:
        more = max(0, min(free, pool.max_workers - counts[pool.name]))
        counts[pool.name] += more
        free -= more
    pools = [pool for pool in spec.pools for _ in range(counts[pool.name])]
    return [Seat(f"w{number}", pool) for number, pool in enumerate(pools)]
