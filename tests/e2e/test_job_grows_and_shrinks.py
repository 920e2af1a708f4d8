"""`kubectl scale` while the job trains: newcomers join, the drained leave as planned, nobody else is restarted."""

from __future__ import annotations

from tests.cluster.kubectl import Object
from tests.cluster.providers import Cluster
from tests.e2e.installation import Installation
from tests.e2e.jobs import FOREVER, Life, digits, holds, life, step, workers


def test_scaling_keeps_the_processes_that_stay(
    cluster: Cluster, operator: Installation, worker_image: str, namespace: str
) -> None:
    kubectl = cluster.kubectl
    job = digits("digits", worker_image, epochs=FOREVER, pools={"a100": 1, "t4": 2})
    job["spec"]["workers"]["max"] = 2
    kubectl.apply(job, namespace=namespace)
    _await_training(cluster, namespace, count=2, beyond=10)
    two = _lives(cluster, namespace)

    kubectl("scale", "rexjob", "digits", "-n", namespace, "--replicas=3")
    grown = _await_training(cluster, namespace, count=3, beyond=10)
    three = _lives(cluster, namespace)
    assert set(two) < set(three)
    assert all(three[worker] == two[worker] for worker in two)

    kubectl("scale", "rexjob", "digits", "-n", namespace, "--replicas=1")
    shrunk = _await_training(cluster, namespace, count=1, beyond=step(grown) + 10)
    for pod in workers(kubectl, namespace, "digits").values():
        if "rex.dev/draining" in pod["metadata"]["annotations"]:
            kubectl.wait_gone("pod", pod["metadata"]["name"], namespace=namespace, seconds=60)
    (left,) = _lives(cluster, namespace).items()
    assert left in three.items()
    assert shrunk["status"]["restarts"] == {"charged": 0, "uncharged": 0}
    assert shrunk["status"].get("failures", []) == []


def _await_training(cluster: Cluster, namespace: str, *, count: int, beyond: int) -> Object:
    return cluster.kubectl.wait(
        "rexjob",
        "digits",
        lambda job: (
            holds(job, "Running") and job["status"]["workers"]["summary"] == f"{count}/{count}" and step(job) > beyond
        ),
        namespace=namespace,
        seconds=240,
        what=f"training with {count} workers beyond step {beyond}",
    )


def _lives(cluster: Cluster, namespace: str) -> dict[str, Life]:
    pods = workers(cluster.kubectl, namespace, "digits")
    return {worker: life(cluster.kubectl, namespace, pod) for worker, pod in pods.items()}
