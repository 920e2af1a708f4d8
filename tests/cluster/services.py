"""Service addresses and names inside the cluster: kube-proxy and CoreDNS, once for all nodes, beside them.

Since the nodes share one network, one kube-proxy serves all of them, and CoreDNS listens on the bridge that every pod
has as its gateway.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.cluster import processes
from tests.cluster.control_plane import CONTEXT
from tests.cluster.network import GATEWAY, POD_SUBNET, Network, node_address
from tests.cluster.shell import ClusterError, run

_START_SECONDS = 60


def start(folder: Path, network: Network, programs: Mapping[str, Path], kubeconfig: Path) -> None:
    """Start both. Raises ``ClusterError`` when one does not answer."""
    proxy = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "clusterCIDR": POD_SUBNET,
        "mode": "iptables",
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        # Pods of one bridge would answer each other directly, past the translated service address.
        "iptables": {"masqueradeAll": True, "minSyncPeriod": "100ms"},
        "hostnameOverride": "node1",
        "healthzBindAddress": f"{node_address(1)}:10256",
        "metricsBindAddress": "",
    }
    (folder / "kube-proxy.yaml").write_text(json.dumps(proxy))
    process = processes.spawn(
        "kube-proxy", [*network.enter, programs["kube-proxy"], f"--config={folder}/kube-proxy.yaml"], folder
    )
    processes.await_healthy(process, lambda: _rules_missing(network), _START_SECONDS)

    zone = f"""cluster.local:53 {{
  bind {GATEWAY}
  errors
  ready {GATEWAY}:8181
  kubernetes cluster.local {{
    kubeconfig {kubeconfig} {CONTEXT}
    pods insecure
    ttl 1
  }}
}}
"""
    (folder / "Corefile").write_text(zone)
    process = processes.spawn("coredns", [*network.enter, programs["coredns"], "-conf", folder / "Corefile"], folder)
    processes.await_healthy(process, lambda: _no_names(network), _START_SECONDS)


def _rules_missing(network: Network) -> str | None:
    try:
        rules = run(*network.enter, "iptables", "-t", "nat", "-S", "KUBE-SERVICES")
    except ClusterError as error:
        return str(error)
    return None if "default/kubernetes" in rules else "no rule for the service default/kubernetes"


def _no_names(network: Network) -> str | None:
    ask = f"import urllib.request; urllib.request.urlopen('http://{GATEWAY}:8181/ready', timeout=2).close()"
    try:
        run(*network.enter, sys.executable, "-c", ask)
    except ClusterError as error:
        return str(error)
    return None
