"""One pod with two devices runs two workers, which train together and end well."""

from __future__ import annotations

from tests.cluster.kubectl import Object
from tests.cluster.providers import Cluster
from tests.e2e.installation import Installation
from tests.e2e.jobs import digits, holds, log, plan_switches, workers


def test_two_workers_of_one_pod_train_to_their_end(
    cluster: Cluster, operator: Installation, worker_image: str, namespace: str
) -> None:
    kubectl = cluster.kubectl
    kubectl.apply(two_devices(digits("digits", worker_image, epochs=8, pools={"a100": 2})), namespace=namespace)

    running = kubectl.wait(
        "rexjob", "digits", lambda job: holds(job, "Running"), namespace=namespace, seconds=180, what="Running"
    )
    assert running["status"]["workers"]["summary"] == "2/2"
    assert running["status"]["poolsSummary"] == "a100:2"
    pods = workers(kubectl, namespace, "digits")
    assert set(pods) == {"w0"}
    assert pods["w0"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"

    done = kubectl.wait(
        "rexjob",
        "digits",
        lambda job: job.get("status", {}).get("phase") in ("Succeeded", "Failed"),
        namespace=namespace,
        seconds=300,
        what="finished",
    )
    assert done["status"]["phase"] == "Succeeded", done["status"]
    assert done["status"]["restarts"] == {"charged": 0, "uncharged": 0}

    # Both processes wrote into the pod's one log, each under its own name, and switched plans at the same steps.
    text = log(kubectl, namespace, pods["w0"]["metadata"]["name"])
    switches = [
        plan_switches("\n".join(line for line in text.splitlines() if f" {name} " in line)) for name in ("w0-0", "w0-1")
    ]
    assert switches[0] == switches[1]
    assert switches[0]


def two_devices(job: Object) -> Object:
    """Have the first pool's pods hold two devices each."""
    job["spec"]["workers"]["min"] = 2
    job["spec"]["pools"][0] |= {"devicesPerPod": 2, "resources": {"limits": {"nvidia.com/gpu": 2}}}
    trainer = next(c for c in job["spec"]["template"]["spec"]["containers"] if c["name"] == "trainer")
    trainer["command"] = [trainer["command"][0], "-m", "rex_worker.launch", "--", *trainer["command"]]
    return job
