"""Checks for code of one's own that runs inside REX; they need neither pytest nor a cluster."""

from rex_operator.testing.policies import Check, check_policy, checks

__all__ = ["Check", "check_policy", "checks"]
