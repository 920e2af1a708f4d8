"""Every policy keeps what all policies promise, by the checks that REX ships for policies of one's own."""

from __future__ import annotations

import pytest

from rex_operator.planning.policies import POLICIES
from rex_operator.testing import Check, checks

EVERY = [check for policy in POLICIES.values() for check in checks(policy)]


@pytest.mark.parametrize("check", EVERY, ids=str)
def test_contract(check: Check) -> None:
    check()


@pytest.mark.parametrize("name", POLICIES)
def test_what_a_policy_is_exempt_from_it_does_not_keep(name: str) -> None:
    from rex_operator.testing.policies import ALL

    policy = POLICIES[name]
    for check in policy.about.exempt:
        with pytest.raises(AssertionError):
            ALL[check](policy)
