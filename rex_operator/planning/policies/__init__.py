"""The planning policies, by the name that a RexJob selects them with."""

from rex_operator.planning.policies.base import Policy, Rebalance, Scene
from rex_operator.planning.policies.even import Even
from rex_operator.planning.policies.rex import Rex

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (Rex, Even)}

__all__ = ["POLICIES", "Even", "Policy", "Rebalance", "Rex", "Scene"]
