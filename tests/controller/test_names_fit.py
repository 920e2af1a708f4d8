"""Names of children fit into what Kubernetes allows, and never clash between jobs."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from rex_operator.controller.names import Owner, child_name

JOB = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)


@given(JOB)
def test_a_childs_name_is_a_dns_label_that_begins_with_a_letter(job: str) -> None:
    for name in (child_name(job), child_name(job, "-state"), child_name(job, "-ca")):
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name)


@given(JOB, JOB)
def test_two_jobs_have_different_children(one: str, other: str) -> None:
    if one != other:
        for suffix in ("", "-state", "-ca"):
            assert child_name(one, suffix) != child_name(other, suffix)


def test_a_pods_name_tells_job_worker_and_life() -> None:
    assert Owner("team", "digits", "u").pod("w2", 3) == "digits-w2-3"
