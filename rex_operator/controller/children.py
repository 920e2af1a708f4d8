"""What a job owns beside its pods: small objects that make them reachable, trusted and protected.

- a headless Service, which also publishes addresses that are not ready: workers meet before they are;
- the channel's CA certificate for the workers;
- a NetworkPolicy that lets only the job's own workers talk to each other's ports;
- a PodDisruptionBudget that lets a drain of nodes take one worker at a time.

All are applied under our field manager and owned by the job, so the garbage collector removes them without us.
"""

from __future__ import annotations

from rex_operator.controller.kube import (
    CONFIG_MAPS,
    DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    SERVICES,
    Object,
    Resource,
)
from rex_operator.controller.names import UID_LABEL, Owner


def children(owner: Owner, ca: str, live: int, *, network_policy: bool = True) -> list[tuple[Resource, Object]]:
    """The objects that should exist for a job with ``live`` workers."""
    chosen = {UID_LABEL: owner.uid}
    wanted: list[tuple[Resource, Object]] = [
        (
            CONFIG_MAPS,
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": owner.metadata(owner.trust), "data": {"ca.crt": ca}},
        ),
        (
            SERVICES,
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": owner.metadata(owner.service),
                "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": chosen},
            },
        ),
        (
            DISRUPTION_BUDGETS,
            {
                "apiVersion": DISRUPTION_BUDGETS.api_version,
                "kind": "PodDisruptionBudget",
                "metadata": owner.metadata(owner.service),
                "spec": {"minAvailable": max(0, live - 1), "selector": {"matchLabels": chosen}},
            },
        ),
    ]
    if network_policy:
        spec = {
            "podSelector": {"matchLabels": chosen},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": chosen}}]}],
        }
        metadata = owner.metadata(owner.service)
        body = {"apiVersion": NETWORK_POLICIES.api_version, "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}
        wanted.append((NETWORK_POLICIES, body))
    return wanted
