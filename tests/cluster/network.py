"""A network of the cluster's own, on the host but apart from it.

Everything of a cluster (API server, kubelets, kube-proxy with its packet filter, the bridge of the pods) lives in one
network namespace. So two clusters never meet, fixed ports are free, the host's packet filter and forwarding stay as
they are, and deleting the namespace takes bridge and rules with it. A pair of virtual interfaces leads in from the
host.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import cache, processes
from tests.cluster.shell import ClusterError, run

BRIDGE = "pods0"
POD_SUBNET = "10.244.0.0/16"
GATEWAY = "10.244.0.1"
SERVICE_SUBNET = "10.96.0.0/16"
_LINKS = 200
_CNI_RESULTS = Path("/var/lib/cni/results")


def node_address(index: int) -> str:
    """Address of a node's kubelet, on the bridge."""
    return f"10.244.0.{10 + index}"


@dataclass(frozen=True)
class Network:
    """The network namespace of the cluster ``name``."""

    name: str

    @property
    def namespace(self) -> str:
        """Name of the network namespace."""
        return f"rex-{self.name}"

    @property
    def path(self) -> Path:
        """File that stands for the namespace."""
        return Path("/run/netns") / self.namespace

    @property
    def enter(self) -> list[str]:
        """Put before a command line to run it inside."""
        # Not `ip netns exec`: that makes a mount namespace too, with a bare /sys where kubelets find no cgroups.
        return ["nsenter", f"--net={self.path}", "--"]

    def create(self, nodes: int) -> str:
        """Make the network for ``nodes`` nodes. Returns the address that the host reaches it at."""
        run("ip", "netns", "add", self.namespace)
        outside, inside = self._connect()
        for command in (
            "ip link set lo up",
            f"ip link add {BRIDGE} type bridge",
            f"ip addr add {GATEWAY}/16 dev {BRIDGE}",
            *(f"ip addr add {node_address(index)}/16 dev {BRIDGE}" for index in range(1, nodes + 1)),
            f"ip link set {BRIDGE} up",
            f"ip route add default via {outside}",
            "sysctl -qw net.ipv4.ip_forward=1",
        ):
            run(*self.enter, *command.split())
        return inside

    def _connect(self) -> tuple[str, str]:
        with cache.lock("links"):
            subnet, link = _free_link()
            outside, inside = (str(host) for host in subnet.hosts())
            run("ip", "link", "add", link, "type", "veth", "peer", "name", "uplink0", "netns", self.namespace)
        run("ip", "addr", "add", f"{outside}/30", "dev", link)
        run("ip", "link", "set", link, "up")
        run(*self.enter, "ip", "addr", "add", f"{inside}/30", "dev", "uplink0")
        run(*self.enter, "ip", "link", "set", "uplink0", "up")
        return outside, inside

    def delete(self) -> None:
        """Remove the namespace with all that is in it, and those of its pods. Does nothing twice."""
        if not self.path.exists():
            return
        processes.stop(processes.inhabitants(self.path), grace=0)
        for result in _CNI_RESULTS.glob(f"{self.namespace}-*"):
            for sandbox in _sandboxes(result):
                if sandbox.startswith("cni-") and (self.path.parent / sandbox).exists():
                    with contextlib.suppress(ClusterError):
                        run("ip", "netns", "delete", sandbox)
            container = result.name.removeprefix(f"{self.namespace}-").split("-")[1]
            for leftover in (result, *_CNI_RESULTS.glob(f"cni-loopback-{container}-*")):
                leftover.unlink(missing_ok=True)
        run("ip", "netns", "delete", self.namespace)


def _free_link() -> tuple[ipaddress.IPv4Network, str]:
    taken = [
        ipaddress.ip_network(f"{address['local']}/{address['prefixlen']}", strict=False)
        for interface in json.loads(run("ip", "-json", "-4", "addr"))
        for address in interface["addr_info"]
    ]
    names = {interface["ifname"] for interface in json.loads(run("ip", "-json", "link"))}
    for index in range(_LINKS):
        subnet = ipaddress.IPv4Network(f"10.213.{index}.0/30")
        link = f"rexlink{index}"
        if link not in names and not any(subnet.overlaps(other) for other in taken):
            return subnet, link
    raise ClusterError("no address range is left for a test cluster; end some: python -m tests.cluster down --all")


def _sandboxes(result: Path) -> set[str]:
    try:
        interfaces = json.loads(result.read_text())["result"]["interfaces"]
        return {Path(interface["sandbox"]).name for interface in interfaces if interface.get("sandbox")}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
