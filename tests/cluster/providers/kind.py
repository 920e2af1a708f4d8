"""A cluster made by kind, where Docker's engine runs.

The folders that worker pods mount from the host (the interpreter and its packages) are mounted into kind's nodes at the
same paths, so that the tests' pod templates are the same everywhere.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.cluster import cache, programs
from tests.cluster.host_python import HostPython
from tests.cluster.kubectl import Kubectl, Object
from tests.cluster.providers.base import Cluster, container_id, equip
from tests.cluster.shell import Say, run


class KindCluster(Cluster):
    """A kind cluster of the tests' own."""

    def __init__(self, name: str, kubectl: Kubectl) -> None:
        self.name = name
        self.kubectl = kubectl

    @classmethod
    def start(cls, name: str, nodes: int, say: Say) -> KindCluster:
        """Create a cluster with ``nodes`` workers, in place of one that a crashed run left."""
        say("creating a kind cluster (about 2 minutes, and the node image's download the first time)")
        name = f"rex-{name}"
        folder = cache.clusters() / name
        folder.mkdir(parents=True, exist_ok=True)
        kubeconfig = folder / "kubeconfig"
        run("kind", "delete", "cluster", "--name", name, timeout=300)
        mounts = [
            {"hostPath": str(path), "containerPath": str(path), "readOnly": True} for path in HostPython.find().folders
        ]
        roles = [{"role": "control-plane"}, *({"role": "worker", "extraMounts": mounts} for _ in range(nodes))]
        config = {"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "nodes": roles}
        (folder / "kind.yaml").write_text(json.dumps(config))
        run(
            *("kind", "create", "cluster", "--name", name, "--wait", "180s"),
            *("--config", folder / "kind.yaml", "--kubeconfig", kubeconfig),
            timeout=900,
        )
        kubectl = Kubectl(shutil.which("kubectl") or programs.find(["kubectl"], say)["kubectl"], kubeconfig)
        cluster = cls(name, kubectl)
        equip(kubectl, cluster.node_names())
        return cluster

    def load_image(self, archive: Path) -> None:
        """Have kind load it."""
        run("kind", "load", "image-archive", archive, "--name", self.name, timeout=600)

    def kill_container(self, pod: Object, container: str) -> None:
        """Ask the node's containerd."""
        identity = container_id(pod, container)
        node = pod["spec"]["nodeName"]
        run("docker", "exec", node, "ctr", "-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", identity)

    def diagnose(self) -> str:
        """Where kind's own logs can be had."""
        return f"kind export logs --name {self.name}"

    def stop(self) -> None:
        """Delete the cluster."""
        run("kind", "delete", "cluster", "--name", self.name, timeout=300)
        shutil.rmtree(cache.clusters() / self.name, ignore_errors=True)
