"""What the tests need of a cluster, whoever provides it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from tests.cluster.kubectl import Kubectl, Object
from tests.cluster.node import give_gpus

DEVICES = ("a100", "t4", "v100")
"""Value of the label ``rex.dev/device`` of the first, second, third node, and so on around."""
GPUS_PER_NODE = 8


class Cluster(ABC):
    """A running cluster. Its nodes carry ``rex.dev/device`` labels and offer ``nvidia.com/gpu``."""

    kubectl: Kubectl
    reaches_nodes: ClassVar[bool] = True
    """Whether ``kill_container`` and ``cut_off`` are possible."""

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.kubectl.kubeconfig

    def node_names(self) -> list[str]:
        """Names of the nodes that take pods."""
        nodes = self.kubectl.list("nodes")
        return [node["metadata"]["name"] for node in nodes if not node["spec"].get("taints")]

    @abstractmethod
    def load_image(self, archive: Path) -> None:
        """Have the image of an OCI archive on every node."""

    @abstractmethod
    def kill_container(self, pod: Object, container: str) -> None:
        """SIGKILL the first process of a pod's container: what an out-of-memory killer or a crash does."""

    @abstractmethod
    def cut_off(self, pod: Object, container: str) -> None:
        """Take a pod's network away while its processes go on: so a broken switch or a lost node looks to its peers."""

    @abstractmethod
    def diagnose(self) -> str:
        """The ends of the logs of the cluster's own parts, for an error's report."""

    @abstractmethod
    def stop(self) -> None:
        """End the cluster, if it was started for these tests."""


def equip(kubectl: Kubectl, nodes: list[str]) -> None:
    """Give nodes that have none of it the devices' label and GPUs."""
    for index, name in enumerate(nodes):
        node = kubectl.get("node", name) or {}
        if "rex.dev/device" not in node["metadata"].get("labels", {}):
            kubectl("label", "node", name, f"rex.dev/device={DEVICES[index % len(DEVICES)]}")
        if "nvidia.com/gpu" not in node["status"].get("capacity", {}):
            give_gpus(kubectl, name, GPUS_PER_NODE)


def container_id(pod: Object, container: str) -> str:
    """The runtime's id of a running container."""
    for status in pod["status"].get("containerStatuses", []):
        if status["name"] == container:
            return str(status["containerID"]).removeprefix("containerd://")
    raise LookupError(f"pod {pod['metadata']['name']} has no container {container}")
