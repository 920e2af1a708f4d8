"""A status written by another version never stops a job from being read."""

from __future__ import annotations

from rex_operator.api.status import JobStatus


def test_what_cannot_be_read_counts_as_absent() -> None:
    status = JobStatus.read(
        {"phase": "Failed", "workers": {"desired": "many"}, "novelty": 1, "restarts": {"charged": 2}}
    )
    assert (status.phase, status.workers.desired, status.restarts.charged) == ("Failed", 0, 2)


def test_no_status_is_a_new_job() -> None:
    assert JobStatus.read(None) == JobStatus.read({}) == JobStatus()


def test_a_status_reads_back_what_it_dumped() -> None:
    status = JobStatus.read({"phase": "Running", "startTime": "2024-05-01T10:00:00Z", "restarts": {"uncharged": 3}})
    assert JobStatus.read(status.dump()) == status
