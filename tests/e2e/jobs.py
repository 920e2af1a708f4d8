"""The digits example as a job for these nodes, and what its workers tell of themselves."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any

import yaml

from tests.cluster.host_python import HostPython
from tests.cluster.images import REPOSITORY
from tests.cluster.kubectl import Kubectl, Object
from tests.e2e.pods import IMAGE_PACKAGES

EXAMPLE = REPOSITORY / "examples" / "digits" / "rexjob.yaml"
FOREVER = 100_000
EAGER = {
    "validation": {"alpha": 0.05, "minEffect": 0.02, "warmupSteps": 2, "minSteps": 8, "maxSteps": 60},
    "search": {"maxTrials": 40, "cooldownSeconds": 1},
}
"""A planner that tries something every few seconds, so that a short run sees plans change."""
PLAN_LINE = re.compile(r"plan (\d+) of generation (\d+): first step (\d+)")


def digits(name: str, image: str, *, epochs: int, pools: dict[str, int], minimum: int = 1) -> Object:
    """The example with its own pools replaced by ``pools`` (device and most workers), on emulated devices."""
    job: Object = yaml.safe_load(EXAMPLE.read_text())
    job["metadata"] = {"name": name}
    spec = job["spec"]
    spec["workers"] = {"min": minimum, "max": sum(pools.values())}
    spec["pools"] = [
        {
            "name": device,
            "maxWorkers": most,
            "nodeSelector": {"rex.dev/device": device},
            "resources": {"limits": {"nvidia.com/gpu": 1}},
        }
        for device, most in pools.items()
    ]
    spec["planner"] = {**spec.get("planner", {}), **copy.deepcopy(EAGER)}
    spec.pop("checkpoint", None)
    _borrow_python(spec["template"]["spec"], image, {"EPOCHS": str(epochs), "REX_EMULATE": "1"})
    return job


def _borrow_python(pod: Object, image: str, environment: dict[str, str]) -> None:
    python = HostPython.find()
    trainer = next(container for container in pod["containers"] if container["name"] == "trainer")
    trainer |= {
        "image": image,
        "imagePullPolicy": "Never",
        "command": [python.executable, "examples/digits/train.py"],
        "volumeMounts": python.mounts(),
    }
    trainer.pop("args", None)
    kept = [entry for entry in trainer.get("env", []) if entry["name"] not in environment]
    own = [{"name": key, "value": value} for key, value in {**environment, "OMP_NUM_THREADS": "1"}.items()]
    trainer["env"] = [*kept, *python.environment(IMAGE_PACKAGES), *own]
    pod["volumes"] = python.volumes()
    pod["terminationGracePeriodSeconds"] = 10


@dataclass(frozen=True)
class Life:
    """One process of one worker: another process never has the same."""

    pod: str
    uid: str
    started: str
    """Start time of the trainer's first process in its kernel's clock ticks, read inside the pod."""


def workers(kubectl: Kubectl, namespace: str, job: str) -> dict[str, Object]:
    """The live pods of a job by worker id."""
    pods = kubectl.list("pods", namespace, f"rex.dev/job={job}")
    return {
        pod["metadata"]["labels"]["rex.dev/worker"]: pod for pod in pods if "deletionTimestamp" not in pod["metadata"]
    }


def life(kubectl: Kubectl, namespace: str, pod: Object) -> Life:
    """The running process of a worker."""
    name = pod["metadata"]["name"]
    stat = kubectl("exec", name, "-n", namespace, "-c", "trainer", "--", "cat", "/proc/1/stat")
    return Life(name, pod["metadata"]["uid"], stat[stat.rindex(")") + 2 :].split()[19])


def log(kubectl: Kubectl, namespace: str, pod: str) -> str:
    """What a worker's script and library have printed."""
    return kubectl("logs", pod, "-n", namespace, "-c", "trainer")


def plan_switches(text: str) -> dict[tuple[int, int], int]:
    """Generation and plan version to the first step under it, as one worker's log tells."""
    return {(int(found[2]), int(found[1])): int(found[3]) for found in PLAN_LINE.finditer(text)}


def condition(job: Object, kind: str) -> dict[str, Any]:
    """A condition of the job's status; empty when it was never set."""
    found = job.get("status", {}).get("conditions", [])
    return next((entry for entry in found if entry["type"] == kind), {})


def holds(job: Object, kind: str) -> bool:
    """Whether a condition is True."""
    return condition(job, kind).get("status") == "True"


def step(job: Object) -> int:
    """How far the job's status says it is."""
    return int(job.get("status", {}).get("progress", {}).get("step", 0))


def plan_version(job: Object) -> int:
    """Version of the plan in the job's status."""
    return int(job.get("status", {}).get("plan", {}).get("version", 0))
