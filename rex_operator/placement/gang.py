"""How many workers a job gets on each of its pools: all of the minimum or nothing, then as many as there is room for.

Workers that exist are kept. A job below its minimum (or with a pool below its own) starts only if the whole minimum
finds room at once; otherwise it starts nothing and holds nothing. Above the minimum it grows in the order in which the
user listed the pools. Pods of other jobs that are made but not yet bound are put on the nodes first, so that two
decisions in a row cannot both count on the same device.

All numbers are of workers; a pod with several devices has as many of them, which come and go together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rex_operator.placement.nodes import Demand, Node, PoolRequest, Room, selects
from rex_operator.placement.selectors import explain
from rex_operator.placement.victims import Live, choose_victims

UNKNOWN_NODES = "the operator may not list nodes: workers are placed by the pools' selectors only"


@dataclass(frozen=True)
class Placement:
    """What should happen to a job's workers."""

    add: Mapping[str, int]
    """New pods per pool."""
    drop: tuple[str, ...] = ()
    """Pods to drain, by the id of their worker or workers."""
    feasible: bool = True
    """Whether the minimum is met, with ``add``."""
    no_match: bool = False
    """Some pool that is needed matches no node at all."""
    message: str = ""
    """Why there are not more workers; empty when all that were asked for are there."""


def place(
    pools: Sequence[PoolRequest],
    workers_min: int,
    workers_max: int,
    live: Sequence[Live],
    nodes: Sequence[Node] | None,
    reserved: Sequence[Demand] = (),
) -> Placement:
    """Decide on the workers of one job.

    Args:
        pools: the job's pools in the user's order.
        workers_min: least workers over all pools; below it nothing is started.
        workers_max: most workers over all pools.
        live: the job's pods that are not on their way out.
        nodes: the cluster, ``free`` counting everyone's bound pods; None when nodes cannot be read, which counts as
            room for everything.
        reserved: what is asked by pods that exist, of any job, but are bound to no node yet.
    """
    counts: Counter[str] = Counter()
    for pod in live:
        counts[pod.pool] += pod.devices
    pool_min = {pool.name: pool.min_workers for pool in pools}
    pool_max = {pool.name: pool.max_workers for pool in pools}
    short = [pool for pool in pools if counts[pool.name] < pool.min_workers]
    surplus = counts.total() + sum(pool.min_workers - counts[pool.name] for pool in short) - workers_max
    if live and (surplus > 0 or any(counts[name] > pool_max.get(name, 0) for name in counts)):
        drop = choose_victims(live, surplus, pool_min, pool_max)
        return Placement({}, tuple(drop), message="more workers than workers.max or a pool's maxWorkers allows")

    room = None if nodes is None else Room(tuple(nodes))
    if room is not None:
        for demand in reserved:
            room.put(demand)
    left = () if room is None else room.nodes
    add: Counter[str] = Counter()

    def grow(pool: PoolRequest, wanted: int) -> None:
        pods = wanted // pool.devices
        add[pool.name] += pool.devices * (pods if room is None else room.put_up_to(pool.demand, pods))

    for pool in short:
        grow(pool, pool.min_workers - counts[pool.name])
    for pool in pools:
        open_places = workers_max - counts.total() - add.total()
        grow(pool, max(0, min(open_places, pool.max_workers - counts[pool.name] - add[pool.name])))

    total = counts.total() + add.total()
    feasible = total >= workers_min and all(counts[p.name] + add[p.name] >= p.min_workers for p in pools)
    message = "" if nodes is None else _shortage(pools, counts + add, workers_max - total, left)
    if feasible:
        pods = {pool.name: add[pool.name] // pool.devices for pool in pools if add[pool.name]}
        return Placement(pods, message=message)
    no_match = nodes is not None and _unmatchable(pools, workers_min, nodes)
    short_of = ", ".join(
        f"pool {p.name} needs {p.min_workers}" for p in short if add[p.name] + counts[p.name] < p.min_workers
    )
    head = f"room for {total} workers, at least {workers_min} are needed" if total < workers_min else short_of
    return Placement({}, feasible=False, no_match=no_match, message=f"{head}: {message or 'too little room'}")


def _shortage(pools: Sequence[PoolRequest], counts: Mapping[str, int], places: int, nodes: Sequence[Node]) -> str:
    if all(pool.devices > min(places, pool.max_workers - counts.get(pool.name, 0)) for pool in pools):
        return ""
    return "; ".join(explain(pool, nodes) for pool in pools)


def _unmatchable(pools: Sequence[PoolRequest], workers_min: int, nodes: Sequence[Node]) -> bool:
    """Whether the minimum could not be met even on an empty cluster of these nodes, for want of matching labels."""
    matching = [pool for pool in pools if any(selects(pool.demand.node_selector, node.labels) for node in nodes)]
    reachable = sum(pool.max_workers for pool in matching)
    return reachable < workers_min or any(pool.min_workers > 0 and pool not in matching for pool in pools)
