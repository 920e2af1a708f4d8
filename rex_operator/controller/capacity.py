"""What the nodes have left, asked for only while a job wants more workers.

Watching every pod of a cluster to know this would cost more than the operator itself; so the pods that use nodes are
listed when the answer is needed, summed up at once, and the sums are good for some seconds. Our own pods come from our
own watch, which is always newer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from decimal import Decimal

from rex_operator.controller.demand import pod_demand, read_node, usage_by_node
from rex_operator.controller.informer import Informer
from rex_operator.controller.kube import PODS, Kube, KubeError, Object
from rex_operator.placement import Demand, Node

logger = logging.getLogger(__name__)

GOOD_FOR_S = 5.0
_IN_USE = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"

Usage = dict[str, dict[str, Decimal]]


class Capacity:
    """The cluster as placement needs it."""

    def __init__(self, kube: Kube, nodes: Informer) -> None:
        self._kube, self._nodes = kube, nodes
        self._others: Usage = {}
        self._until = float("-inf")
        self._forbidden = False

    async def nodes(self, ours: Iterable[Object], *, exact: bool) -> tuple[Node, ...] | None:
        """The nodes; None when they may not be read.

        Args:
            ours: REX's own pods, of all jobs, as our watch has them.
            exact: count what others use, too; without it ``free`` is what can be allocated.
        """
        if self._nodes.forbidden:
            return None
        used = await self._usage(ours) if exact else {}
        return tuple(read_node(node, used.get(node["metadata"]["name"], {})) for node in self._nodes)

    async def _usage(self, ours: Iterable[Object]) -> Usage:
        ours = list(ours)
        now = asyncio.get_running_loop().time()
        if now >= self._until and not self._forbidden:
            try:
                pods, _ = await self._kube.list(PODS, None, fields=_IN_USE)
                known = {pod["metadata"]["uid"] for pod in ours}
                self._others = usage_by_node(pod for pod in pods if pod["metadata"]["uid"] not in known)
                self._until = now + GOOD_FOR_S
            except KubeError as error:
                if error.status != 403:
                    raise
                logger.warning("Not allowed to list all pods: what others use of the nodes is not counted")
                self._forbidden = True
        total = {node: dict(amounts) for node, amounts in self._others.items()}
        for node, amounts in usage_by_node(ours).items():
            for name, amount in amounts.items():
                mine = total.setdefault(node, {})
                mine[name] = mine.get(name, Decimal(0)) + amount
        return total


def reservations(ours: Iterable[Object]) -> list[Demand]:
    """What REX's own pods ask that exist but are bound to no node yet."""
    return [
        pod_demand(pod["spec"])
        for pod in ours
        if not pod["spec"].get("nodeName") and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
    ]
