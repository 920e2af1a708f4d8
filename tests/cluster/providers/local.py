"""A cluster of the real programs, side by side on this machine: no container engine, no registry, no virtual machine.

It is what kind packs into containers, started directly. Nodes share the machine and one network namespace; each has
its own containerd and kubelet.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.cluster import cache, images, prerequisites, processes, programs, services
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubectl import Kubectl, Object
from tests.cluster.network import Network
from tests.cluster.node import Node, give_gpus
from tests.cluster.providers.base import DEVICES, GPUS_PER_NODE, Cluster, container_id
from tests.cluster.shell import ClusterError, Say, quiet, run, tail

MARK = "cluster.json"
"""A state folder that has this file is of such a cluster."""
_LAST_TO_STOP = ("kube-controller-manager", "kube-scheduler", "kube-apiserver", "etcd")
_PLENTY_KIB = 14 * 1024 * 1024
_POD_LOG_LINKS = Path("/var/log/containers")


class LocalCluster(Cluster):
    """The cluster ``name``, whose state is in ``folder``. ``owned``: ``stop`` ends it."""

    def __init__(self, name: str, nodes: int, binaries: Mapping[str, Path], *, owned: bool) -> None:
        self.name = name
        self.folder = cache.clusters() / name
        self.network = Network(name)
        self.programs = binaries
        self.nodes = [Node(index, self.folder, self.network, binaries) for index in range(1, nodes + 1)]
        self.owned = owned
        self.kubectl = Kubectl(binaries["kubectl"], self.folder / "kubeconfig")

    @classmethod
    def start(cls, name: str, nodes: int, say: Say) -> LocalCluster:
        """Start a cluster, in place of what a crashed run may have left under the same name.

        Raises:
            ClusterError: something is missing or does not answer; everything that was started is ended again.
        """
        prerequisites.ensure_root()
        prerequisites.ensure(prerequisites.NODES, say)
        binaries = programs.find(programs.WHOLE, say)
        pause = images.pause(binaries["pause"], say)
        remove(name)
        cluster = cls(name, nodes, binaries, owned=True)
        say(f"starting a control plane and {nodes} nodes (about 20 s)")
        try:
            cluster._start(pause)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    @classmethod
    def attach(cls, folder: Path, say: Say) -> LocalCluster:
        """The running cluster whose state is in ``folder``."""
        state = json.loads((folder / MARK).read_text())
        return cls(folder.name, state["nodes"], programs.find(programs.WHOLE, say), owned=False)

    def _start(self, pause: Path) -> None:
        _make_state_folder(self.folder)
        (self.folder / MARK).write_text(json.dumps({"nodes": len(self.nodes)}))
        address = self.network.create(len(self.nodes))
        plane = ControlPlane(self.folder, self.programs, address, enter=self.network.enter)
        with ThreadPoolExecutor() as pool:
            runtimes = [pool.submit(self._prepare, node, pause) for node in self.nodes]
            plane.start(scheduler=True)
            for runtime in runtimes:
                runtime.result()
            names = pool.submit(services.start, self.folder, self.network, self.programs, plane.kubeconfig)
            list(pool.map(self._join, self.nodes))
            names.result()

    def _prepare(self, node: Node, pause: Path) -> None:
        node.start_runtime()
        node.import_image(pause)

    def _join(self, node: Node) -> None:
        device = DEVICES[(node.index - 1) % len(DEVICES)]
        kubelet = node.start_kubelet(self.kubeconfig, {"rex.dev/device": device})
        try:
            self.kubectl.wait("node", node.name, _is_ready, seconds=90, what="Ready")
            give_gpus(self.kubectl, node.name, GPUS_PER_NODE)
        except ClusterError as error:
            raise ClusterError(f"{error}\n{tail(kubelet.log)}") from None

    def load_image(self, archive: Path) -> None:
        """Import it into every node's containerd."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: node.import_image(archive), self.nodes))

    def kill_container(self, pod: Object, container: str) -> None:
        """SIGKILL by the host's pid."""
        os.kill(self._pid(pod, container), signal.SIGKILL)

    def cut_off(self, pod: Object, container: str) -> None:
        """Shut the pod's interface."""
        run("nsenter", f"--net=/proc/{self._pid(pod, container)}/ns/net", "ip", "link", "set", "eth0", "down")

    def _pid(self, pod: Object, container: str) -> int:
        node = next(node for node in self.nodes if node.name == pod["spec"]["nodeName"])
        return node.container_pid(container_id(pod, container))

    def diagnose(self) -> str:
        """The ends of all logs."""
        logs = [*sorted(self.folder.glob("*.log")), *sorted(self.folder.glob("node*/*.log"))]
        return "\n".join(tail(log, lines=8) for log in logs)

    def stop(self) -> None:
        """End everything, if this object started it."""
        if self.owned:
            remove(self.name)


def remove(name: str) -> None:
    """End the cluster ``name`` whatever state it is in, and delete its state. Does nothing when there is none."""
    folder, network = cache.clusters() / name, Network(name)
    nodes = sorted({int(path.name.removeprefix("node")) for path in folder.glob("node*") if path.is_dir()})
    # ctr is only needed where a containerd still answers, and then it was there to start it.
    binaries = {"ctr": cache.programs() / "ctr"}
    with contextlib.suppress(ClusterError):
        binaries = programs.find(["ctr"], quiet)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda index: Node(index, folder, network, binaries).stop(), nodes))
    running = {process.name: process for process in processes.recorded(folder)}
    processes.stop([p for name, p in running.items() if name not in _LAST_TO_STOP], grace=0)
    # An API server that lost its etcd does not end at SIGTERM: one after the other, etcd last.
    for part in _LAST_TO_STOP:
        processes.stop([running[part]] if part in running else [], grace=2)
    containers = processes.descendants(processes.inhabitants(network.path))
    processes.stop(containers, grace=0)
    network.delete()
    for link in _POD_LOG_LINKS.glob("*") if _POD_LOG_LINKS.is_dir() else []:
        if link.is_symlink() and str(link.readlink()).startswith(f"{folder}/"):
            link.unlink()
    shutil.rmtree(Path("/run") / network.namespace, ignore_errors=True)
    while os.path.ismount(folder):
        run("umount", "-l", folder)
    shutil.rmtree(folder, ignore_errors=True)


def _make_state_folder(folder: Path) -> None:
    """Make it in memory, if there is plenty: nodes unpack 100,000 files, and some disks are slow to delete them."""
    folder.mkdir(parents=True)
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    if int(fields["MemAvailable"].split()[0]) >= _PLENTY_KIB:
        run("mount", "-t", "tmpfs", "-o", f"size={_PLENTY_KIB // 2}k,mode=755", "rex-test-cluster", folder)


def _is_ready(node: Object) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
