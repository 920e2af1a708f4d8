"""One node: a containerd and a kubelet, with folders and sockets of their own, beside those of the other nodes.

They must not share a containerd: a kubelet ends pods that it does not know.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import prerequisites, processes
from tests.cluster.kubectl import Kubectl
from tests.cluster.network import BRIDGE, GATEWAY, POD_SUBNET, Network, node_address
from tests.cluster.processes import Process
from tests.cluster.shell import ClusterError, run
from tests.cluster.versions import PAUSE_IMAGE

_START_SECONDS = 60


@dataclass(frozen=True)
class Node:
    """Node ``index`` (from 1) of the cluster whose state is in ``cluster``."""

    index: int
    cluster: Path
    network: Network
    programs: Mapping[str, Path]

    @property
    def name(self) -> str:
        """Name of the node in Kubernetes."""
        return f"node{self.index}"

    @property
    def folder(self) -> Path:
        """Where its files, logs and pods are."""
        return self.cluster / self.name

    @property
    def runtime(self) -> Path:
        """Where its sockets and mounts are; short, since a socket's path may have 107 characters."""
        return Path("/run") / self.network.namespace / self.name

    @property
    def socket(self) -> Path:
        """containerd's socket."""
        return self.runtime / "containerd.sock"

    def start_runtime(self) -> None:
        """Start containerd. Raises ``ClusterError`` when it does not answer."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.runtime.mkdir(parents=True, exist_ok=True)
        (self.folder / "cni").mkdir(exist_ok=True)
        (self.folder / "cni" / "10-pods.conflist").write_text(json.dumps(self._cni()))
        (self.folder / "containerd.toml").write_text(self._containerd())
        path = f"{self.programs['containerd-shim-runc-v2'].parent}{os.pathsep}{os.environ['PATH']}"
        process = processes.spawn(
            "containerd",
            [*self.network.enter, self.programs["containerd"], "-c", self.folder / "containerd.toml"],
            self.folder,
            {"PATH": path},
        )
        processes.await_healthy(process, self._no_runtime, _START_SECONDS)

    def start_kubelet(self, kubeconfig: Path, labels: Mapping[str, str]) -> Process:
        """Start the kubelet; it registers the node, which takes some seconds more."""
        (self.folder / "kubelet.yaml").write_text(json.dumps(self._kubelet(), indent=1))
        return processes.spawn(
            "kubelet",
            [
                *self.network.enter,
                self.programs["kubelet"],
                f"--kubeconfig={kubeconfig}",
                f"--config={self.folder}/kubelet.yaml",
                f"--root-dir={self.folder}/kubelet",
                f"--cert-dir={self.folder}/kubelet/pki",
                f"--hostname-override={self.name}",
                f"--node-ip={node_address(self.index)}",
                f"--node-labels={','.join(f'{key}={value}' for key, value in labels.items())}",
            ],
            self.folder,
        )

    def ctr(self, *arguments: str | Path, timeout: float = 60) -> str:
        """Ask this node's containerd."""
        return run(self.programs["ctr"], "-a", self.socket, "-n", "k8s.io", *arguments, timeout=timeout)

    def import_image(self, archive: Path) -> None:
        """Bring an image archive onto the node; it is unpacked when the first container needs it."""
        self.ctr("images", "import", "--no-unpack", archive, timeout=300)

    def container_pid(self, container_id: str) -> int:
        """The host's pid of a container's first process. Raises ``ClusterError`` when it is not running."""
        for line in self.ctr("tasks", "ls").splitlines()[1:]:
            identity, pid, *_ = line.split()
            if identity == container_id:
                return int(pid)
        raise ClusterError(f"{self.name}: container {container_id} is not running")

    def stop(self) -> None:
        """End kubelet, containers and containerd, then unmount what is left. Works on what a crashed run left too."""
        recorded = {process.name: process for process in processes.recorded(self.folder)}
        processes.stop([p for name, p in recorded.items() if name == "kubelet"], grace=0)
        daemon = recorded.get("containerd")
        if daemon is not None and daemon.alive():
            with contextlib.suppress(ClusterError):
                for task in self.ctr("tasks", "ls", "-q").split():
                    with contextlib.suppress(ClusterError):
                        self.ctr("tasks", "rm", "-f", task, timeout=20)
            processes.stop([daemon], grace=5)
        containers = [path.name for path in self.runtime.glob("state/io.containerd.runtime.v2.task/k8s.io/*")]
        for mount in sorted(_mounts_below(self.folder, self.runtime), reverse=True):
            with contextlib.suppress(ClusterError):
                run("umount", "-l", mount)
        for container in containers:
            _remove_cgroups(container)
        shutil.rmtree(self.runtime, ignore_errors=True)

    def _no_runtime(self) -> str | None:
        try:
            self.ctr("version", timeout=5)
        except ClusterError as error:
            return str(error)
        return None

    def _cni(self) -> dict[str, object]:
        addresses = {
            "subnet": POD_SUBNET,
            "rangeStart": f"10.244.{self.index}.2",
            "rangeEnd": f"10.244.{self.index}.250",
            "gateway": GATEWAY,
        }
        ipam = {
            "type": "host-local",
            "dataDir": str(self.folder / "ipam"),
            "ranges": [[addresses]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "ipMasq": False, "ipam": ipam}
        return {"cniVersion": "1.0.0", "name": f"{self.network.namespace}-{self.name}", "plugins": [bridge]}

    def _containerd(self) -> str:
        # Without restrict_oom_score_adj every sandbox dies ("can't get final child's PID from pipe") on hosts that do
        # not let us lower the score. NRI and opt would share folders with the other nodes.
        return f"""version = 3
root = "{self.folder}/containerd"
state = "{self.runtime}/state"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt"]
[grpc]
  address = "{self.socket}"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{prerequisites.cni_folder()}"]
  conf_dir = "{self.folder}/cni"
"""

    def _kubelet(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "address": node_address(self.index),
            "port": 10250,
            "healthzBindAddress": node_address(self.index),
            "healthzPort": 10248,
            "readOnlyPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "clusterDomain": "cluster.local",
            "clusterDNS": [GATEWAY],
            "resolvConf": "",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "2s",
            "podLogsDir": f"{self.folder}/pod-logs",
            "volumePluginDir": f"{self.folder}/kubelet/volume-plugins",
        }


def give_gpus(kubectl: Kubectl, node: str, count: int) -> None:
    """Let a node without GPUs offer some: extended resources need no device until somebody opens it."""
    amount = [{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": str(count)}]
    kubectl.patch("node", node, amount, subresource="status")
    kubectl.wait(
        "node",
        node,
        lambda found: found["status"]["allocatable"].get("nvidia.com/gpu") == str(count),
        seconds=60,
        what="offering GPUs",
    )


def _mounts_below(*folders: Path) -> Iterator[str]:
    roots = tuple(f"{folder}/" for folder in folders)
    for line in Path("/proc/mounts").read_text().splitlines():
        point = line.split()[1].encode().decode("unicode_escape")
        if point.startswith(roots):
            yield point


def _remove_cgroups(container: str) -> None:
    # cgroup v2 has one tree, v1 one per controller.
    for pattern in (f"k8s.io/{container}", f"*/k8s.io/{container}"):
        for folder in Path("/sys/fs/cgroup").glob(pattern):
            with contextlib.suppress(OSError):
                folder.rmdir()
