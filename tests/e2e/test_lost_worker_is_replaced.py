"""A worker that dies is replaced; the others keep their processes and go on training."""

from __future__ import annotations

import pytest

from tests.cluster.kubectl import Object
from tests.cluster.providers import Cluster
from tests.e2e.installation import Installation
from tests.e2e.jobs import FOREVER, digits, holds, life, step, workers


def test_survivors_keep_their_processes(
    cluster: Cluster, operator: Installation, worker_image: str, namespace: str
) -> None:
    kubectl = cluster.kubectl
    job = digits("digits", worker_image, epochs=FOREVER, pools={"a100": 1, "t4": 2}, minimum=2)
    kubectl.apply(job, namespace=namespace)
    kubectl.wait(
        "rexjob",
        "digits",
        lambda job: _whole(job) and step(job) > 20,
        namespace=namespace,
        seconds=240,
        what="training",
    )
    before = {worker: life(kubectl, namespace, pod) for worker, pod in workers(kubectl, namespace, "digits").items()}
    assert set(before) == {"w0", "w1", "w2"}

    # Rank 0 holds the group's meeting point: losing it is the hardest case.
    lost = _kill(cluster, namespace, before["w0"].pod)
    grown = kubectl.wait(
        "rexjob",
        "digits",
        lambda job: _whole(job) and _generation(job) > _generation(lost) and step(job) > step(lost) + 20,
        namespace=namespace,
        seconds=240,
        what="training with a replacement",
    )
    after = {worker: life(kubectl, namespace, pod) for worker, pod in workers(kubectl, namespace, "digits").items()}
    assert set(after) == {"w0", "w1", "w2"}
    assert after["w1"] == before["w1"]
    assert after["w2"] == before["w2"]
    assert after["w0"].uid != before["w0"].uid
    assert grown["status"]["failures"][-1]["worker"] == "w0"


def _kill(cluster: Cluster, namespace: str, pod: str) -> Object:
    if not cluster.kills_containers:
        pytest.skip("needs a way to the nodes to kill a container")
    seen = cluster.kubectl.get("rexjob", "digits", namespace)
    victim = cluster.kubectl.get("pod", pod, namespace)
    assert seen is not None
    assert victim is not None
    cluster.kill_container(victim, "trainer")
    return seen


def _whole(job: Object) -> bool:
    return holds(job, "Running") and job["status"]["workers"]["summary"] == "3/3"


def _generation(job: Object) -> int:
    return int(job["status"]["generation"])
