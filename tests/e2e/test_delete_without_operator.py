"""Deleting a job needs no operator: there is nothing to wait for and nothing is left."""

from __future__ import annotations

from tests.cluster.providers import Cluster
from tests.e2e.installation import Installation
from tests.e2e.jobs import FOREVER, digits


def test_job_goes_whole_while_no_operator_runs(
    cluster: Cluster, operator: Installation, worker_image: str, namespace: str
) -> None:
    kubectl = cluster.kubectl
    kubectl.apply(digits("digits", worker_image, epochs=FOREVER, pools={"a100": 1}), namespace=namespace)
    kubectl.wait(
        "rexjob",
        "digits",
        lambda job: job.get("status", {}).get("workers", {}).get("desired") == 1,
        namespace=namespace,
        seconds=60,
        what="given a worker",
    )
    (pod,) = kubectl.list("pods", namespace)
    with operator.stopped():
        kubectl("delete", "rexjob", "digits", "-n", namespace, "--timeout=30s")
        kubectl.wait_gone("pod", pod["metadata"]["name"], namespace=namespace, seconds=60)
        for kind in ("service", "configmap", "networkpolicy", "poddisruptionbudget"):
            for left in kubectl.list(kind, namespace):
                if left["metadata"]["name"] != "kube-root-ca.crt":
                    kubectl.wait_gone(kind, left["metadata"]["name"], namespace=namespace, seconds=60)
