"""The operator dies at once, without a word: training goes on, and the next one takes up where it was."""

from __future__ import annotations

import itertools

import pytest

from tests.cluster.providers import Cluster
from tests.e2e.installation import Installation
from tests.e2e.jobs import FOREVER, digits, holds, life, plan_version, step, workers


def test_training_goes_on_and_versions_never_go_back(
    cluster: Cluster, operator: Installation, worker_image: str, namespace: str
) -> None:
    if not cluster.reaches_nodes:
        pytest.skip("needs a way to the nodes to kill a container")
    kubectl = cluster.kubectl
    job = digits("digits", worker_image, epochs=FOREVER, pools={"a100": 1, "t4": 1}, minimum=2)
    kubectl.apply(job, namespace=namespace)
    before = kubectl.wait(
        "rexjob",
        "digits",
        lambda job: holds(job, "Running") and plan_version(job) >= 3,
        namespace=namespace,
        seconds=240,
        what="re-planned",
    )
    lives = {worker: life(kubectl, namespace, pod) for worker, pod in workers(kubectl, namespace, "digits").items()}

    killed = operator.pod()
    cluster.kill_container(killed, operator.container)
    back = operator.wait_ready_again(killed)
    assert (
        back["status"]["containerStatuses"][0]["restartCount"]
        > killed["status"]["containerStatuses"][0]["restartCount"]
    )

    seen: list[tuple[int, int, int]] = []
    for event, now in kubectl.watch("rexjob", namespace=namespace, name="digits", seconds=240):
        assert event != "DELETED"
        seen.append((now["status"]["generation"], plan_version(now), step(now)))
        if plan_version(now) > plan_version(before) + 1 and step(now) > step(before) + 50:
            break
    else:
        raise AssertionError(f"the new operator made no new plan: {seen}")
    assert all(earlier[:2] <= later[:2] for earlier, later in itertools.pairwise(seen)), seen
    assert seen[0][0] >= before["status"]["generation"]
    assert seen[0][1] >= plan_version(before)
    after = {worker: life(kubectl, namespace, pod) for worker, pod in workers(kubectl, namespace, "digits").items()}
    assert after == lives
