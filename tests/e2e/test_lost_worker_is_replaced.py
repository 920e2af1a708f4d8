"""A worker that dies is replaced; the others keep their processes and go on training."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from tests.cluster.kubectl import Object
from tests.cluster.providers import Cluster
from tests.e2e.installation import Installation
from tests.e2e.jobs import FOREVER, Life, digits, holds, life, log, step, workers


def test_survivors_keep_their_processes(
    cluster: Cluster, operator: Installation, worker_image: str, namespace: str
) -> None:
    job = digits("digits", worker_image, epochs=FOREVER, pools={"a100": 1, "t4": 2}, minimum=2)
    cluster.kubectl.apply(job, namespace=namespace)
    cluster.kubectl.wait(
        "rexjob",
        "digits",
        lambda job: _whole(job) and step(job) > 20,
        namespace=namespace,
        seconds=240,
        what="training with all workers",
    )

    def delete(pod: Object) -> None:
        name = pod["metadata"]["name"]
        cluster.kubectl("delete", "pod", name, "-n", namespace, "--grace-period=0", "--force")

    failure = _lose(cluster, namespace, rank=1, how=delete)
    assert not failure["charged"]

    def kill(pod: Object) -> None:
        cluster.kill_container(pod, "trainer")

    def cut(pod: Object) -> None:
        cluster.cut_off(pod, "trainer")

    if cluster.reaches_nodes:
        # Rank 0 holds the group's meeting point: losing it is the hardest case.
        failure = _lose(cluster, namespace, rank=0, how=kill)
        assert failure["charged"]
        assert failure["exitCode"] == 137

        # Its process lives and computes on, but neither the others nor the operator hear of it.
        failure = _lose(cluster, namespace, rank=0, how=cut)
        assert not failure["charged"]


def _lose(cluster: Cluster, namespace: str, *, rank: int, how: Callable[[Object], None]) -> Object:
    """Lose the worker of that rank and check the others; returns the entry of its end in the job's status."""
    kubectl = cluster.kubectl
    before = _lives(cluster, namespace)
    assert set(before) == {"w0", "w1", "w2"}
    then = kubectl.get("rexjob", "digits", namespace)
    assert then is not None
    lost = next(worker for worker, its in before.items() if _rank(cluster, namespace, its, then) == rank)
    victim = kubectl.get("pod", before[lost].pod, namespace)
    assert victim is not None

    how(victim)
    now = kubectl.wait(
        "rexjob",
        "digits",
        lambda job: _whole(job) and _generation(job) > _generation(then) and step(job) > step(then) + 20,
        namespace=namespace,
        seconds=240,
        what="training with a replacement",
    )
    after = _lives(cluster, namespace)
    assert set(after) == set(before)
    assert {worker for worker in after if after[worker] != before[worker]} == {lost}
    failure: Object = now["status"]["failures"][-1]
    assert (failure["worker"], failure["uid"]) == (lost, before[lost].uid)
    return failure


def _lives(cluster: Cluster, namespace: str) -> dict[str, Life]:
    pods = workers(cluster.kubectl, namespace, "digits")
    return {worker: life(cluster.kubectl, namespace, pod) for worker, pod in pods.items()}


def _rank(cluster: Cluster, namespace: str, its: Life, job: Object) -> int:
    """The worker's place in the group that the job has now; its log comes a moment after the operator knows."""
    place = re.compile(rf"generation {_generation(job)}: rank (\d+) of 3")
    deadline = time.monotonic() + 60
    while (found := place.search(log(cluster.kubectl, namespace, its.pod))) is None:
        assert time.monotonic() < deadline, f"{its.pod} never said its place in generation {_generation(job)}"
        time.sleep(0.5)
    return int(found[1])


def _whole(job: Object) -> bool:
    """All three train in one group; that three are ready is true before the last is let in."""
    if not holds(job, "Running") or job["status"]["workers"]["summary"] != "3/3":
        return False
    plan = job["status"].get("plan", {})
    return (plan.get("generation"), plan.get("state")) == (_generation(job), "Applied")


def _generation(job: Object) -> int:
    return int(job["status"]["generation"])
