"""Restarts: whose fault, at whose expense, and when it is enough."""

from __future__ import annotations

import pytest

from rex_operator.api.spec import Failure, FailureRule
from rex_operator.jobs import judge, restart_delay


def replay(failure: Failure, *ends: tuple[int | None, tuple[str, ...]]) -> tuple[int, bool]:
    """Return charged restarts and whether the job failed."""
    charged = 0
    for code, reasons in ends:
        verdict = judge(failure, charged, code, reasons)
        if verdict.fail:
            return charged, True
        charged += verdict.charged
    return charged, False


def test_c_094_exactly_max_restarts() -> None:
    failure = Failure(max_restarts=2)
    assert replay(failure, (1, ()), (1, ())) == (2, False)
    assert replay(failure, (1, ()), (1, ()), (1, ())) == (2, True)


def test_c_094_what_the_cluster_did_is_not_charged() -> None:
    assert replay(Failure(max_restarts=0), *[(143, ("Preempted",))] * 10, *[(None, ("Planned",))] * 10) == (0, False)


@pytest.mark.parametrize(
    ("code", "reasons", "expected"),
    [(2, (), "Fail"), (1, ("Preempted",), "Ignore"), (137, ("OOMKilled",), "Restart"), (1, (), "Restart")],
)
def test_the_users_rules_come_first(code: int, reasons: tuple[str, ...], expected: str) -> None:
    rules = [
        FailureRule(exit_codes=[2], action="Fail"),
        FailureRule(reasons=["Preempted", "NodeShutdown"], action="Ignore"),
    ]
    verdict = judge(Failure(rules=rules), 0, code, reasons)
    assert (verdict.fail, verdict.charged) == {
        "Fail": (True, True),
        "Ignore": (False, False),
        "Restart": (False, True),
    }[expected]


def test_a_rule_can_charge_what_is_free_by_default() -> None:
    failure = Failure(rules=[FailureRule(reasons=["Preempted"], action="Restart")])
    assert judge(failure, 0, 143, ["Preempted"]).charged


def test_delays_grow_and_stay_bounded() -> None:
    delays = [restart_delay(n) for n in range(30)]
    assert delays[:2] == [0.0, 0.0]
    assert delays == sorted(delays)
    assert max(delays) <= 60
