"""Where a test cluster comes from: three providers behind one interface.

A developer with kind, a CI machine with nothing but Go, and somebody who has a test cluster at hand all run the same
tests. ``choose`` decides in this order: a kubeconfig that was given, kind where Docker's engine answers, else the real
programs side by side on this machine.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.cluster import cache, docker
from tests.cluster.providers import kind, local
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
    "remove",
    "start",
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
    return start(name, nodes, say)


def start(name: str, nodes: int, say: Say) -> Cluster:
    """Start a cluster in place of one of that name. Raises ``ClusterError`` like ``choose``."""
    provider = KindCluster if kind_works() else LocalCluster
    return provider.start(name, nodes, say)


def remove(name: str) -> None:
    """End the cluster ``name``, whoever made it and whatever state it is in."""
    if (cache.clusters() / name / kind.MARK).exists():
        kind.remove(name)
    else:
        local.remove(name)


def kind_works() -> bool:
    """Whether kind and Docker's engine are there."""
    return shutil.which("kind") is not None and docker.answers()


def makes_own() -> bool:
    """Whether ``choose`` would start the real programs on this machine."""
    return given_kubeconfig() is None and not kind_works()


def attach(kubeconfig: Path, say: Say) -> Cluster:
    """The running cluster of a kubeconfig; one that ``python -m tests.cluster up`` made is known as such again."""
    folder = kubeconfig.parent
    if (folder / kind.MARK).exists():
        return KindCluster.attach(folder, say)
    if (folder / local.MARK).exists() and os.geteuid() == 0:
        return LocalCluster.attach(folder, say)
    return ExistingCluster(kubeconfig, say)
