"""The chart alone makes a working operator, over the whole cluster or without any right over it."""

from __future__ import annotations

from tests.cluster.providers import Cluster
from tests.e2e.installation import CRD, Installation
from tests.e2e.jobs import digits


def test_job_succeeds_under_the_charts_operator(
    cluster: Cluster, installation: Installation, worker_image: str, namespace: str
) -> None:
    installation.by_helm()
    _train(cluster, worker_image, namespace)
    installation.uninstall_chart()
    assert cluster.kubectl.get("crd", CRD) is not None, "uninstalling the chart must not delete people's jobs"


def test_job_succeeds_without_rights_over_the_cluster(
    cluster: Cluster, installation: Installation, worker_image: str, namespace: str
) -> None:
    installation.by_helm("--set=watch.clusterWide=false", f"--set=watch.namespaces={{{namespace}}}")
    bindings = cluster.kubectl.list("clusterrolebindings", selector="app.kubernetes.io/name=rex-operator")
    assert bindings == []
    _train(cluster, worker_image, namespace)


def _train(cluster: Cluster, image: str, namespace: str) -> None:
    cluster.kubectl.apply(digits("digits", image, epochs=1, pools={"a100": 1}), namespace=namespace)
    done = cluster.kubectl.wait(
        "rexjob",
        "digits",
        lambda job: job.get("status", {}).get("phase") in ("Succeeded", "Failed"),
        namespace=namespace,
        seconds=240,
        what="finished",
    )
    assert done["status"]["phase"] == "Succeeded", done["status"]
