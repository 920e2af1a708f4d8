"""Where a test cluster comes from: three providers behind one interface.

A developer with kind, a CI machine with nothing but Go, and somebody who has a test cluster at hand all run the same
tests. ``choose`` decides in this order: a kubeconfig that was given, kind where Docker's engine answers, else the real
programs side by side on this machine.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.cluster import docker
from tests.cluster.providers.base import DEVICES, Cluster
from tests.cluster.providers.existing import ExistingCluster, given_kubeconfig
from tests.cluster.providers.kind import KindCluster
from tests.cluster.providers.local import LocalCluster
from tests.cluster.shell import Say

__all__ = [
    "DEVICES",
    "Cluster",
    "ExistingCluster",
    "KindCluster",
    "LocalCluster",
    "attach",
    "choose",
    "kind_works",
    "makes_own",
]


def choose(name: str, nodes: int, say: Say) -> Cluster:
    """Give a running cluster of at least ``nodes`` nodes; a new one is called ``name``.

    Raises:
        ClusterError: none can be had; the message says what to install or which part failed.
    """
    kubeconfig = given_kubeconfig()
    if kubeconfig is not None:
        say(f"using the cluster of {kubeconfig}")
        return attach(kubeconfig, say)
    if kind_works():
        return KindCluster.start(name, nodes, say)
    return LocalCluster.start(name, nodes, say)


def kind_works() -> bool:
    """Whether kind and Docker's engine are there."""
    return shutil.which("kind") is not None and docker.answers()


def makes_own() -> bool:
    """Whether ``choose`` would start the real programs on this machine."""
    return given_kubeconfig() is None and not kind_works()


def attach(kubeconfig: Path, say: Say) -> Cluster:
    """The running cluster of a kubeconfig; one that ``python -m tests.cluster up`` made is known as such again."""
    state = kubeconfig.parent / "cluster.json"
    if state.exists() and os.geteuid() == 0:
        return LocalCluster.attach(kubeconfig.parent, say)
    return ExistingCluster(kubeconfig, say)
