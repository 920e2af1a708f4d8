"""From `kubectl apply` to Succeeded on two pools, with plans changed on the way; `kubectl delete` leaves nothing."""

from __future__ import annotations

from tests.cluster.providers import Cluster
from tests.e2e.installation import Installation
from tests.e2e.jobs import digits, holds, log, plan_switches, plan_version, workers


def test_job_runs_from_apply_to_succeeded_and_is_deleted_whole(
    cluster: Cluster, operator: Installation, worker_image: str, namespace: str
) -> None:
    kubectl = cluster.kubectl
    kubectl.apply(digits("digits", worker_image, epochs=8, pools={"a100": 1, "t4": 1}, minimum=2), namespace=namespace)

    running = kubectl.wait(
        "rexjob", "digits", lambda job: holds(job, "Running"), namespace=namespace, seconds=180, what="Running"
    )
    assert running["status"]["workers"]["summary"] == "2/2"
    pods = workers(kubectl, namespace, "digits")
    on = {pod["metadata"]["labels"]["rex.dev/pool"]: _device(cluster, pod) for pod in pods.values()}
    assert on == {"a100": "a100", "t4": "t4"}

    done = kubectl.wait(
        "rexjob",
        "digits",
        lambda job: job.get("status", {}).get("phase") in ("Succeeded", "Failed"),
        namespace=namespace,
        seconds=300,
        what="finished",
    )
    assert done["status"]["phase"] == "Succeeded", done["status"]
    assert holds(done, "Succeeded")
    assert not holds(done, "Running")
    assert not holds(done, "Failed")
    assert all(c["observedGeneration"] == done["metadata"]["generation"] for c in done["status"]["conditions"])
    assert done["status"]["restarts"] == {"charged": 0, "uncharged": 0}
    assert done["status"]["progress"]["percent"] == 100

    heading, row = kubectl("get", "rj", "digits", "-n", namespace).splitlines()
    for column in ("PHASE", "WORKERS", "POOLS", "BATCH", "GOODPUT", "PROGRESS", "RESTARTS", "AGE"):
        assert column in heading
    assert "Succeeded" in row
    told = kubectl("describe", "rj", "digits", "-n", namespace)
    for reason in ("WorkersCreated", "Running", "Succeeded"):
        assert reason in told

    # All workers agree on which step each plan began with; the planner changed it at least once.
    switches = [plan_switches(log(kubectl, namespace, pod["metadata"]["name"])) for pod in pods.values()]
    assert switches[0] == switches[1]
    assert len(switches[0]) >= 2
    # A plan that was made right before the end may have been run by nobody.
    assert plan_version(done) >= max(version for _, version in switches[0])

    kubectl("delete", "rj", "digits", "-n", namespace, "--timeout=60s")
    for pod in pods.values():
        kubectl.wait_gone("pod", pod["metadata"]["name"], namespace=namespace, seconds=60)
    for kind in ("service", "configmap", "networkpolicy", "poddisruptionbudget"):
        for left in kubectl.list(kind, namespace):
            if left["metadata"]["name"] != "kube-root-ca.crt":
                kubectl.wait_gone(kind, left["metadata"]["name"], namespace=namespace, seconds=60)


def _device(cluster: Cluster, pod: dict[str, dict[str, str]]) -> str:
    node = cluster.kubectl.get("node", pod["spec"]["nodeName"])
    assert node is not None
    return str(node["metadata"]["labels"]["rex.dev/device"])
