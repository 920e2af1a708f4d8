"""A job that cannot run says so: at the server, or in its conditions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.providers import Cluster
from tests.cluster.shell import ClusterError
from tests.e2e.installation import Installation
from tests.e2e.jobs import condition, digits


def test_pool_without_nodes_is_named(
    cluster: Cluster, operator: Installation, worker_image: str, namespace: str
) -> None:
    job = digits("lonely", worker_image, epochs=1, pools={"h100": 2}, minimum=2)
    cluster.kubectl.apply(job, namespace=namespace)
    told = cluster.kubectl.wait(
        "rexjob",
        "lonely",
        lambda job: condition(job, "Scheduled").get("status") == "False",
        namespace=namespace,
        seconds=60,
        what="told why it cannot be scheduled",
    )
    assert "h100" in condition(told, "Scheduled")["message"]
    assert cluster.kubectl.list("pods", namespace) == []


def test_missing_image_is_named(cluster: Cluster, operator: Installation, worker_image: str, namespace: str) -> None:
    job = digits("imageless", "registry.local/nowhere:1", epochs=1, pools={"a100": 1})
    cluster.kubectl.apply(job, namespace=namespace)
    cluster.kubectl.wait(
        "rexjob",
        "imageless",
        lambda job: "registry.local/nowhere:1" in str(job.get("status", {})) and "Image" in str(job.get("status", {})),
        namespace=namespace,
        seconds=90,
        what="told that the image is missing",
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"worker": {"min": 1}}, r'unknown field "(spec\.)?worker"'),
        ({"workers": {"min": 3, "max": 2}}, "is greater than max|min.*max"),
        ({"batch": {"initial": "many", "max": 64}}, "spec.batch.initial"),
    ],
)
def test_server_refuses(
    cluster: Cluster, operator: Installation, worker_image: str, namespace: str, change: dict[str, Any], words: str
) -> None:
    job = digits("wrong", worker_image, epochs=1, pools={"a100": 3})
    job["spec"] |= change
    with pytest.raises(ClusterError, match=words):
        cluster.kubectl.apply(job, namespace=namespace)
    assert cluster.kubectl.get("rexjob", "wrong", namespace) is None
