"""Promise 8: a finished job stays finished, whatever is missing, and what it leaves is tidied up as asked."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rex_operator.api import JobStatus, RexJobSpec
from rex_operator.controller.decide import decide
from rex_operator.controller.observation import Decision
from rex_operator.jobs import Ended
from tests.controller.pictures import NOW, later, pod, row, seen, spec, training, view


def end(success: bool = True, job: RexJobSpec | None = None) -> Decision:
    pods = [pod("w0", ended=success, exit_code=0 if success else None), pod("w1", ended=True, exit_code=0)]
    return decide(seen(pods, job, ended=Ended(success, "Finished" if success else "WorkersFailed", "told")))


def test_success_is_told_once_and_for_all() -> None:
    made = end()
    assert (made.status.phase, made.status.completion_time) == ("Succeeded", NOW)
    conditions = {c.type: c.status for c in made.status.conditions}
    assert conditions["Succeeded"] == "True" and conditions["Running"] == "False" and "Failed" not in conditions


def test_what_succeeded_is_whole_even_if_the_last_reports_were_lost() -> None:
    pods = [pod("w0", ended=True, exit_code=0)]
    late = view("Succeeded", [row(pods[0], "finished")], progress=0.88, total_samples=100)
    made = decide(seen(pods, ended=Ended(True, "Finished", "told"), view=late))
    assert made.status.progress is not None and made.status.progress.summary == "100%"


def test_what_succeeded_is_whole_though_only_the_pods_tell_of_it() -> None:
    pods = [pod("w0", ended=True, exit_code=0), pod("w1", ended=True, exit_code=0)]
    late = view("Recovering", generation=2, step=88, progress=0.88, total_samples=100)
    picture = seen(pods, status=JobStatus(generation=2), view=late)
    made = decide(picture)
    after = decide(later(picture, made, now=NOW + timedelta(minutes=1)))
    for status in (made.status, after.status):
        assert status.phase == "Succeeded" and status.progress is not None
        assert (status.progress.percent, status.progress.summary) == (100, "100%")


@pytest.mark.parametrize("success", [True, False])
def test_c_027_a_finished_job_never_makes_anything_again(success: bool) -> None:
    made = end(success)
    for minutes in (1, 60):
        after = decide(later(seen(ended=None, view=None), made, now=NOW + timedelta(minutes=minutes)))
        assert (after.create, after.targets, after.status.phase) == ((), {}, made.status.phase)
        assert after.status == made.status.model_copy(
            update={"workers": after.status.workers, "pools": after.status.pools, "replicas": 0, "pools_summary": ""}
        )


@pytest.mark.parametrize(
    ("policy", "left"), [("Running", {"digits-w1-0"}), ("None", {"digits-w0-0", "digits-w1-0"}), ("All", set())]
)
def test_pods_are_cleaned_as_the_policy_says(policy: str, left: set[str]) -> None:
    made = end(False, job=spec(cleanPodPolicy=policy))
    pods = [pod("w0"), pod("w1", ended=True, exit_code=1)]
    after = decide(later(seen(pods, job=spec(cleanPodPolicy=policy)), made, now=NOW + timedelta(minutes=1)))
    assert {p.name for p in pods} - {p.name for p in after.delete} == left


def test_workers_get_a_moment_for_their_last_words() -> None:
    made = end(False)
    soon = decide(later(seen([pod("w0")]), made, now=NOW + timedelta(seconds=2)))
    assert soon.delete == () and soon.again_s == pytest.approx(8.0)


def test_the_job_goes_when_its_time_to_live_is_over() -> None:
    job = spec(ttlSecondsAfterFinished=60)
    made = end(job=job)
    before = decide(later(seen(job=job), made, now=NOW + timedelta(seconds=59)))
    after = decide(later(seen(job=job), made, now=NOW + timedelta(seconds=60)))
    assert (before.delete_job, before.again_s, after.delete_job) == (False, 1.0, True)


def test_an_end_that_nobody_heard_is_read_from_the_pods() -> None:
    pods = [pod("w0", ended=True, exit_code=0), pod("w1", ended=True, exit_code=0)]
    status = JobStatus(generation=2)
    assert decide(seen(pods, status=status, view=view("Recovering", generation=2))).status.phase == "Succeeded"


def test_one_worker_that_ends_first_does_not_end_the_job_nor_is_it_replaced() -> None:
    pods = [pod("w0"), pod("w1", ended=True, exit_code=0)]
    made = decide(seen(pods, status=JobStatus(generation=2), view=training(*pods)))
    assert made.status.phase == "Running"
    assert made.create == () and set(made.targets) == {"w0", "w1"}


def test_a_script_that_never_calls_rex_is_named() -> None:
    made = decide(seen([pod("w0", ended=True, exit_code=0), pod("w1")]))
    assert (made.status.phase, made.status.reason) == ("Failed", "NeverConnected")
    assert "without calling rex.init()" in made.status.message
