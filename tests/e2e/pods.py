"""Pods that run a few lines of Python in the worker image, with the host's packages at hand."""

from __future__ import annotations

from typing import Any

from tests.cluster.host_python import HostPython
from tests.cluster.kubectl import Kubectl, Object
from tests.cluster.shell import ClusterError

IMAGE_PACKAGES = "/opt/rex/site-packages"


def python_pod(name: str, image: str, script: str, **spec: Any) -> Object:
    """A pod that runs ``script`` once, as the image's own unprivileged user; ``spec`` adds to the pod's spec."""
    python = HostPython.find()
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "command": [python.executable, "-c", script],
        "env": python.environment(IMAGE_PACKAGES),
        "volumeMounts": [*python.mounts(), *spec.pop("mounts", [])],
        **spec.pop("container", {}),
    }
    volumes = [*python.volumes(), *spec.pop("volumes", [])]
    body = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": volumes,
        **spec,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": body}


def run_to_end(kubectl: Kubectl, namespace: str, pod: Object, seconds: float = 120) -> str:
    """Run a pod and return what it printed. Raises ``ClusterError`` with that when it fails."""
    name = pod["metadata"]["name"]
    kubectl.apply(pod, namespace=namespace)
    ended = kubectl.wait(
        "pod",
        name,
        lambda found: found["status"].get("phase") in ("Succeeded", "Failed"),
        namespace=namespace,
        seconds=seconds,
        what="at its end",
    )
    words = kubectl("logs", name, "-n", namespace)
    if ended["status"]["phase"] != "Succeeded":
        raise ClusterError(f"pod {name} failed:\n{words}")
    return words
