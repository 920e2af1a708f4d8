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

MARK = "kind.yaml"
"""A state folder that has this file is of a kind cluster."""


class KindCluster(Cluster):
    """A kind cluster of the tests' own."""

    def __init__(self, name: str, kubectl: Kubectl, *, owned: bool) -> None:
        self.name = name
        self.kubectl = kubectl
        self.owned = owned

    @classmethod
    def start(cls, name: str, nodes: int, say: Say) -> KindCluster:
        """Create a cluster with ``nodes`` workers, in place of one that a crashed run left."""
        say("creating a kind cluster (about 2 minutes, and the node image's download the first time)")
        remove(name)
        folder = cache.clusters() / name
        folder.mkdir(parents=True)
        kubeconfig = folder / "kubeconfig"
        mounts = [
            {"hostPath": str(path), "containerPath": str(path), "readOnly": True} for path in HostPython.find().folders
        ]
        roles = [{"role": "control-plane"}, *({"role": "worker", "extraMounts": mounts} for _ in range(nodes))]
        config = {"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "nodes": roles}
        (folder / MARK).write_text(json.dumps(config))
        run(
            *("kind", "create", "cluster", "--name", f"rex-{name}", "--wait", "180s"),
            *("--config", folder / MARK, "--kubeconfig", kubeconfig),
            timeout=900,
        )
        cluster = cls(name, _kubectl(kubeconfig, say), owned=True)
        equip(cluster.kubectl, cluster.node_names())
        return cluster

    @classmethod
    def attach(cls, folder: Path, say: Say) -> KindCluster:
        """The running cluster whose kubeconfig is in ``folder``."""
        return cls(folder.name, _kubectl(folder / "kubeconfig", say), owned=False)

    def load_image(self, archive: Path) -> None:
        """Have kind load it."""
        run("kind", "load", "image-archive", archive, "--name", f"rex-{self.name}", timeout=600)

    def kill_container(self, pod: Object, container: str) -> None:
        """Ask the node's containerd."""
        identity = container_id(pod, container)
        node = pod["spec"]["nodeName"]
        run("docker", "exec", node, "ctr", "-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", identity)

    def cut_off(self, pod: Object, container: str) -> None:
        """Shut the pod's interface from its node."""
        inside = ("docker", "exec", pod["spec"]["nodeName"])
        tasks = run(*inside, "ctr", "-n", "k8s.io", "tasks", "ls").splitlines()
        pid = next(line.split()[1] for line in tasks if line.startswith(container_id(pod, container)))
        run(*inside, "nsenter", "--target", pid, "--net", "ip", "link", "set", "eth0", "down")

    def diagnose(self) -> str:
        """Where kind's own logs can be had."""
        return f"kind export logs --name rex-{self.name}"

    def stop(self) -> None:
        """Delete the cluster, if this object created it."""
        if self.owned:
            remove(self.name)


def remove(name: str) -> None:
    """Delete the kind cluster ``name`` and its state, whether or not there is one."""
    run("kind", "delete", "cluster", "--name", f"rex-{name}", timeout=300)
    shutil.rmtree(cache.clusters() / name, ignore_errors=True)


def _kubectl(kubeconfig: Path, say: Say) -> Kubectl:
    return Kubectl(shutil.which("kubectl") or programs.find(["kubectl"], say)["kubectl"], kubeconfig)
