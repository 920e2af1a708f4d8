"""What counts towards ``failure.maxRestarts``, and that it counts once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rex_operator.api import JobStatus
from rex_operator.api.spec import Failure
from rex_operator.api.status import MAX_FAILURES
from rex_operator.controller.decide import decide
from rex_operator.controller.ends import account, avoided_nodes, not_before, vanished_entry
from tests.controller.pictures import NOW, later, pod, row, seen, spec, training, view


def failed(worker: str, attempt: int = 0, exit_code: int | None = 1, **changes: Any) -> Any:
    return pod(worker, attempt=attempt, ended=True, exit_code=exit_code, **changes)


def test_a_failed_worker_is_charged_replaced_and_never_charged_again() -> None:
    pods = [failed("w0"), pod("w1")]
    first = decide(seen(pods, job=spec(workers={"min": 2, "max": 2}), view=training(pods[1])))
    assert first.status.restarts.charged == 1
    assert [(new.worker_id, new.attempt) for new in first.create] == [("w0", 1)]
    again = decide(later(seen([*pods, pod("w0", attempt=1)], job=spec(workers={"min": 2, "max": 2})), first))
    assert again.status.restarts.charged == 1
    assert again.failures == ()


@pytest.mark.parametrize("reason", ["Terminated", "NodeShutdown", "Evicted", "Preempted", "DisruptionTarget"])
def test_c_059_what_the_cluster_did_is_not_charged(reason: str) -> None:
    status = JobStatus()
    for attempt in range(10):
        verdict = account(
            status, Failure(max_restarts=3), [failed("w0", attempt, exit_code=137, reasons=(reason,))], [], NOW
        )
        assert verdict.fatal == ""
        status = verdict.status
    assert (status.restarts.charged, status.restarts.uncharged) == (0, 10)


def test_c_059_and_c_094_the_budget_is_exact() -> None:
    status = JobStatus()
    for attempt in range(3):
        verdict = account(status, Failure(max_restarts=3), [failed("w0", attempt)], [], NOW)
        assert verdict.fatal == ""
        status = verdict.status
    verdict = account(status, Failure(max_restarts=3), [failed("w0", 3)], [], NOW)
    assert "failure.maxRestarts (3) is used up" in verdict.fatal
    assert verdict.status.restarts.charged == 3


def test_a_rule_of_the_user_comes_first() -> None:
    job = spec(failure={"rules": [{"exitCodes": [2], "action": "Fail"}]}, workers={"min": 1, "max": 1})
    made = decide(seen([failed("w0", exit_code=2)], job=job))
    assert made.status.phase == "Failed"
    assert "failure.rules say Fail" in made.status.message


def test_c_067_a_pod_that_somebody_deleted_costs_nothing() -> None:
    gone = vanished_entry(pod("w0"), NOW)
    verdict = account(JobStatus(), Failure(), [], [gone], NOW)
    assert (verdict.status.restarts.charged, verdict.status.restarts.uncharged) == (0, 1)
    assert account(verdict.status, Failure(), [], [gone], NOW).new == ()


def test_drained_and_finished_workers_are_no_failures() -> None:
    drained = failed("w0", draining_since=NOW, exit_code=143)
    assert account(JobStatus(), Failure(), [drained, failed("w1", exit_code=0)], [], NOW).new == ()


def test_c_057_a_node_that_refuses_pods_is_avoided_and_tries_are_spaced() -> None:
    status = JobStatus()
    made, now = 0, NOW
    end = NOW + timedelta(minutes=10)
    while now < end:
        refused = failed("w0", made, exit_code=None, reasons=("UnexpectedAdmissionError",), node="bad")
        status = account(status, Failure(max_restarts=0), [refused], [], now).status
        assert "bad" in avoided_nodes(status, now)
        made += 1
        now = max(not_before(status, now), now + timedelta(seconds=1))
    assert made < 20
    assert status.restarts.charged == 0
    assert avoided_nodes(status, now + timedelta(minutes=6)) == set()


def test_c_057_old_failed_pods_are_removed_and_the_newest_kept_for_their_logs() -> None:
    pods = [failed("w0", n, created=NOW - timedelta(minutes=20 - n)) for n in range(9)]
    job = spec(workers={"min": 1, "max": 1}, failure={"maxRestarts": 100})
    first = decide(seen(pods, job=job))
    assert [p.attempt for p in first.delete] == [0, 1, 2, 3]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=30))
def test_the_list_stays_bounded_and_no_present_pod_is_charged_twice(batches: list[int]) -> None:
    status, attempt = JobStatus(), 0
    total = 0
    for size in batches:
        pods = [failed("w0", attempt + n) for n in range(size)]
        attempt += size
        total += size
        for _ in range(2):
            status = account(status, Failure(max_restarts=10_000), pods, [], NOW).status
        assert len(status.failures) <= MAX_FAILURES
    assert status.restarts.charged == total


def test_a_worker_out_of_reach_is_replaced_and_not_charged() -> None:
    pods = [pod("w0"), pod("w1")]
    rows = [row(pods[0]), row(pods[1], "lost", rank=None, connected=False, given_up=True)]
    job = spec(workers={"min": 1, "max": 2})
    first = decide(seen(pods, job=job, view=view("Running", rows)))
    assert [p.worker_id for p in first.delete] == ["w1"]
    assert [(new.worker_id, new.attempt) for new in first.create] == [("w1", 1)]
    assert "w1" not in first.targets
    assert [(f.uid, f.reason, f.charged) for f in first.failures] == [(pods[1].uid, "Unreachable", False)]
    gone = [pods[0], pod("w1", deleting=True, ended=True, exit_code=137), pod("w1", attempt=1)]
    again = decide(later(seen(gone, job=job), first))
    assert again.failures == ()
    assert (again.status.restarts.charged, again.status.restarts.uncharged) == (0, 1)


def test_a_lost_worker_is_looked_at_again_soon() -> None:
    pods = [pod("w0"), pod("w1")]
    rows = [row(pods[0]), row(pods[1], "lost", rank=None, connected=False)]
    made = decide(seen(pods, job=spec(workers={"min": 1, "max": 2}), view=view("Running", rows)))
    assert (made.delete, made.create) == ((), ())
    assert made.again_s is not None and made.again_s <= 15
