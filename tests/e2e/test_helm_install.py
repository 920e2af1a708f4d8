"""The chart alone makes a working operator, and its removal leaves the jobs' kind in place."""

from __future__ import annotations

from tests.cluster.providers import Cluster
from tests.e2e.installation import CRD, Installation
from tests.e2e.jobs import digits


def test_job_succeeds_under_the_charts_operator(
    cluster: Cluster, installation: Installation, worker_image: str, namespace: str
) -> None:
    installation.by_helm()
    cluster.kubectl.apply(digits("digits", worker_image, epochs=1, pools={"a100": 1}), namespace=namespace)
    done = cluster.kubectl.wait(
        "rexjob",
        "digits",
        lambda job: job.get("status", {}).get("phase") in ("Succeeded", "Failed"),
        namespace=namespace,
        seconds=240,
        what="finished",
    )
    assert done["status"]["phase"] == "Succeeded", done["status"]
    assert cluster.kubectl.get("crd", CRD) is not None
