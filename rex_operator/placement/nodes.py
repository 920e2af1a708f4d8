"""What a node has left, and whether a worker could run on it.

Labels lie: a node keeps its label when the driver has failed, and a free label says nothing about who else uses the
devices. So a node counts by what it can allocate minus what everyone's pods on it request, and only when it is ready,
not cordoned, and all its taints are tolerated. The rules are those of the default scheduler, which binds the pods in
the end; here they only answer "how many would fit".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TypeAlias

Amounts: TypeAlias = Mapping[str, Decimal]
"""Resource name to amount in base units (cores, bytes, devices); ``pods`` counts pods."""


@dataclass(frozen=True)
class Taint:
    """A node's taint."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True)
class Toleration:
    """A pod's toleration; an empty key with ``Exists`` tolerates everything, an empty effect every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        """Whether this toleration lets a pod onto a node with ``taint``."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        return bool(self.key) and self.value == taint.value


@dataclass(frozen=True)
class Node:
    """A node as placement sees it; ``free`` is allocatable minus what all pods bound to it request."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    allocatable: Amounts = field(default_factory=dict)
    free: Amounts = field(default_factory=dict)
    ready: bool = True
    cordoned: bool = False

    @property
    def draining(self) -> bool:
        """Whether what runs here is about to go: cordoned, not ready, or marked to be emptied."""
        return self.cordoned or not self.ready or any(taint.effect == "NoExecute" for taint in self.taints)


@dataclass(frozen=True)
class Demand:
    """What one pod asks of a node."""

    requests: Amounts
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True)
class PoolRequest:
    """One pool of a job: how many workers it may have and what a pod of them asks."""

    name: str
    min_workers: int
    max_workers: int
    demand: Demand
    devices: int = 1
    """Workers of a pod; the numbers of workers are multiples of it."""


def selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether a node with ``labels`` matches the selector."""
    return all(labels.get(key) == value for key, value in selector.items())


def tolerated(demand: Demand, node: Node) -> bool:
    """Whether no taint keeps the pod off the node; ``PreferNoSchedule`` never does."""
    hard = [taint for taint in node.taints if taint.effect in ("NoSchedule", "NoExecute")]
    return all(any(toleration.covers(taint) for toleration in demand.tolerations) for taint in hard)


def eligible(demand: Demand, node: Node) -> bool:
    """Whether the pod could run on the node if nothing else did."""
    return (
        node.ready
        and not node.cordoned
        and selects(demand.node_selector, node.labels)
        and tolerated(demand, node)
        and all(node.allocatable.get(name, Decimal(0)) >= amount for name, amount in demand.requests.items())
    )


def fits(demand: Demand, node: Node) -> bool:
    """Whether the pod fits on what the node has left."""
    return eligible(demand, node) and all(
        node.free.get(name, Decimal(0)) >= amount for name, amount in demand.requests.items()
    )


def take(demand: Demand, node: Node) -> Node:
    """The node after one such pod was put on it."""
    free = dict(node.free)
    for name, amount in demand.requests.items():
        free[name] = free.get(name, Decimal(0)) - amount
    return replace(node, free=free)


class Room:
    """The nodes while a plan is being made: pods are put on them one by one, first where it is fullest.

    Filling the fullest node first keeps whole nodes free for gangs; it is only a model of what the scheduler will do.
    """

    def __init__(self, nodes: tuple[Node, ...]) -> None:
        self._nodes = {node.name: node for node in nodes}

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes with what is left of them now."""
        return tuple(self._nodes.values())

    def put(self, demand: Demand) -> bool:
        """Put one pod somewhere; False when it fits nowhere."""
        open_nodes = [node for node in self._nodes.values() if fits(demand, node)]
        if not open_nodes:
            return False
        scarce = max(demand.requests, key=lambda name: (name not in ("cpu", "memory", "pods"), name), default="pods")
        best = min(open_nodes, key=lambda node: (node.free.get(scarce, Decimal(0)), node.name))
        self._nodes[best.name] = take(demand, best)
        return True

    def put_up_to(self, demand: Demand, wanted: int) -> int:
        """Put up to ``wanted`` such pods; the number that found room."""
        placed = 0
        while placed < wanted and self.put(demand):
            placed += 1
        return placed
