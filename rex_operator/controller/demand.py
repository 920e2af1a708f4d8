"""From Kubernetes objects to the terms of placement: what a node offers, what a pod asks.

A pod's request is that of the scheduler: the sum over its containers, or the largest init container if that is more,
plus overhead; a limit stands in for a request that is not given. One ``pods`` is added, because nodes run out of those
too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from rex_operator.api import Pool, RexJobSpec
from rex_operator.api.quantity import parse_quantity
from rex_operator.placement import Demand, Node, PoolRequest, Taint, Toleration

_DISRUPTED = "node.kubernetes.io/out-of-service"


def pod_demand(spec: Mapping[str, Any]) -> Demand:
    """What a pod with this spec asks of a node."""
    total: defaultdict[str, Decimal] = defaultdict(Decimal)
    for container in spec.get("containers", []):
        _add(total, _requests(container))
    beside: defaultdict[str, Decimal] = defaultdict(Decimal)
    peak: dict[str, Decimal] = {}
    for container in spec.get("initContainers") or []:
        requests = _requests(container)
        if container.get("restartPolicy") == "Always":
            _add(beside, requests)
        else:
            for name, amount in requests.items():
                peak[name] = max(peak.get(name, Decimal(0)), amount + beside[name])
    _add(total, beside)
    for name, amount in peak.items():
        total[name] = max(total[name], amount)
    _add(total, _amounts(spec.get("overhead") or {}))
    requests = {name: amount for name, amount in total.items() if amount > 0} | {"pods": Decimal(1)}
    tolerations = tuple(read_toleration(item) for item in spec.get("tolerations") or [])
    return Demand(requests, dict(spec.get("nodeSelector") or {}), tolerations)


def pool_request(pool: Pool, spec: RexJobSpec, pod_spec: Mapping[str, Any]) -> PoolRequest:
    """The pool as placement sees it; ``pod_spec`` is that of a built worker pod of this pool."""
    most = min(pool.max_workers, spec.workers.max)
    return PoolRequest(pool.name, pool.min_workers, most, pod_demand(pod_spec), pool.devices_per_pod)


def read_toleration(item: Mapping[str, Any]) -> Toleration:
    """A toleration as placement sees it."""
    return Toleration(
        key=item.get("key") or "",
        operator=item.get("operator") or "Equal",
        value=item.get("value") or "",
        effect=item.get("effect") or "",
    )


def read_node(node: Mapping[str, Any], used: Mapping[str, Decimal]) -> Node:
    """A node as placement sees it; ``used`` is what the pods bound to it request."""
    spec, status = node.get("spec", {}), node.get("status", {})
    allocatable = _amounts(status.get("allocatable") or {})
    taints = tuple(
        Taint(t["key"], t.get("value") or "", t["effect"]) for t in spec.get("taints") or [] if t["key"] != _DISRUPTED
    )
    # A node marked out of service has lost its pods for good, whatever else it says.
    lost = any(taint["key"] == _DISRUPTED for taint in spec.get("taints") or [])
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions", []))
    return Node(
        name=node["metadata"]["name"],
        labels=node["metadata"].get("labels") or {},
        taints=taints,
        allocatable=allocatable,
        free={name: amount - used.get(name, Decimal(0)) for name, amount in allocatable.items()},
        ready=ready and not lost,
        cordoned=bool(spec.get("unschedulable")),
    )


def usage_by_node(pods: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Decimal]]:
    """What the pods that are bound and not ended request, by node; a terminating pod still holds its share."""
    used: defaultdict[str, defaultdict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    for pod in pods:
        node = pod.get("spec", {}).get("nodeName")
        if node and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            _add(used[node], pod_demand(pod["spec"]).requests)
    return {node: dict(amounts) for node, amounts in used.items()}


def _requests(container: Mapping[str, Any]) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    return _amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _amounts(raw: Mapping[str, Any]) -> dict[str, Decimal]:
    amounts = {}
    for name, amount in raw.items():
        try:
            amounts[name] = parse_quantity(amount)
        except ValueError:
            continue  # what we cannot read, the API server has let through; the scheduler knows better
    return amounts


def _add(total: defaultdict[str, Decimal], amounts: Mapping[str, Decimal]) -> None:
    for name, amount in amounts.items():
        total[name] += amount
