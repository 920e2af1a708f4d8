"""Promise 9: below the minimum no device is held longer than the pending bound, and the reason is told."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from rex_operator.api import JobStatus
from rex_operator.controller.decide import decide
from tests.controller.pictures import NOW, later, pod, row, seen, spec, training, view

AFTER = NOW + timedelta(seconds=601)


def test_c_013_a_pool_that_matches_no_node_is_told_at_once_and_fails_in_the_end() -> None:
    nobody = seen(job=spec(pools__0__nodeSelector={"gpu": "A100"}, pools__1__nodeSelector={"gpu": "T4"}))
    first = decide(nobody)
    scheduled = first.status.condition("Scheduled")
    assert scheduled is not None and scheduled.reason == "NoMatchingNodes"
    assert "pool fast matches no node" in scheduled.message
    assert first.create == ()
    late = decide(later(nobody, first, now=AFTER))
    assert (late.status.phase, late.status.reason) == ("Failed", "NoMatchingNodes")


def test_waiting_for_room_holds_nothing_and_may_last() -> None:
    full = seen(nodes=[replace(n, free={}) for n in seen().nodes or ()])
    first = decide(full)
    late = decide(later(full, first, now=NOW + timedelta(hours=5)))
    assert (late.status.phase, late.status.reason, late.create) == ("Pending", "WaitingForRoom", ())


def test_c_052_a_gang_whose_pods_find_no_place_gives_all_devices_back() -> None:
    pods = [pod("w0"), pod("w1", node=None, started=False)]
    job = spec(workers={"min": 2, "max": 2})
    one_came = view("Pending", [row(pods[0], "ready", None)], generation=0)
    first = decide(seen(pods, job=job, view=one_came))
    assert first.delete == ()
    late = decide(later(seen(pods, job=job, view=one_came), first, now=AFTER))
    assert set(late.delete) == set(pods) and late.create == ()
    assert late.status.phase == "Starting"
    scheduled = late.status.condition("Scheduled")
    assert scheduled is not None and scheduled.reason == "DevicesGivenBack"
    soon = decide(later(seen(job=job), late, now=AFTER + timedelta(seconds=5)))
    assert soon.create == ()
    again = decide(later(seen(job=job), late, now=AFTER + timedelta(seconds=31)))
    assert len(again.create) == 2


def test_a_missing_image_is_named() -> None:
    pods = [pod("w0", started=False, stuck="ErrImagePull: not found"), pod("w1", started=False)]
    job = spec(workers={"min": 2, "max": 2})
    first = decide(seen(pods, job=job))
    assert first.status.reason == "WorkersStuck" and "ErrImagePull: not found" in first.status.message
    late = decide(later(seen(pods, job=job), first, now=AFTER))
    assert (late.status.phase, late.status.reason) == ("Failed", "WorkersStuck")


def test_a_script_that_runs_and_never_connects_is_named() -> None:
    pods = [pod("w0"), pod("w1")]
    job = spec(workers={"min": 2, "max": 2})
    first = decide(seen(pods, job=job))
    late = decide(later(seen(pods, job=job), first, now=AFTER))
    assert (late.status.phase, late.status.reason) == ("Failed", "NeverConnected")


def test_survivors_below_the_minimum_are_released_after_the_bound() -> None:
    pods = [pod("w0")]
    job = spec(workers={"min": 2, "max": 2})
    nowhere = {"nodes": [replace(n, free={}) for n in seen().nodes or ()]}
    alone = view("Recovering", [row(pods[0], "ready", None)], generation=2)
    ran = decide(seen(pods, job=job, view=training(*pods), **nowhere))
    lost = decide(later(seen(pods, job=job, **nowhere), ran, view=alone))
    running = lost.status.condition("Running")
    assert running is not None and running.status == "False" and lost.delete == ()
    late = decide(later(seen(pods, job=job, **nowhere), lost, view=alone, now=AFTER))
    assert late.delete == tuple(pods)


def test_a_job_that_trains_is_never_overdue() -> None:
    pods = [pod("w0"), pod("w1")]
    job = spec(workers={"min": 2, "max": 2})
    first = decide(seen(pods, job=job, view=training(*pods)))
    late = decide(later(seen(pods, job=job, view=training(*pods)), first, now=NOW + timedelta(days=1)))
    assert late.delete == () and late.status.phase == "Running"


def test_the_active_deadline_ends_the_job() -> None:
    job = spec(activeDeadlineSeconds=3600, workers={"min": 2, "max": 2})
    pods = [pod("w0"), pod("w1")]
    first = decide(seen(pods, job=job, view=training(*pods)))
    assert first.status.start_time == NOW
    late = decide(later(seen(pods, job=job, view=training(*pods)), first, now=NOW + timedelta(hours=1)))
    assert (late.status.phase, late.status.reason) == ("Failed", "DeadlineExceeded")
    assert late.outcome is not None and not late.outcome.success


def test_suspending_lets_workers_save_and_then_holds_nothing() -> None:
    job = spec(suspend=True)
    pods = [pod("w0"), pod("w1")]
    first = decide(seen(pods, job=job, view=training(*pods)))
    assert first.stop and {p.name for p in first.drain} == {p.name for p in pods} and first.delete == ()
    stopped = [replace(p, draining_since=NOW, ended=True, exit_code=0) for p in pods]
    second = decide(later(seen(stopped, job=job, view=view("Stopped")), first))
    assert set(second.delete) == set(stopped)
    third = decide(later(seen(job=job, view=view("Stopped")), second))
    assert (third.status.phase, third.create) == ("Suspended", ())
    resumed = decide(later(seen(view=None), third))
    suspended = resumed.status.condition("Suspended")
    assert suspended is not None and suspended.status == "False" and len(resumed.create) == 4


def test_a_refused_template_ends_the_job_with_the_servers_words() -> None:
    made = decide(seen(invalid="spec.containers[0].image: Required value"))
    assert (made.status.phase, made.status.reason) == ("Failed", "Invalid")
    assert made.status.message == "spec.containers[0].image: Required value"


def test_status_with_an_unread_generation_is_kept() -> None:
    made = decide(seen(status=JobStatus(generation=7), view=None))
    assert made.status.generation == 7
