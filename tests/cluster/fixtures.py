"""pytest fixtures: ``api_server`` (real Kubernetes without nodes, seconds) and ``cluster`` (with nodes and images)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster import cache, images, programs, providers
from tests.cluster.control_plane import ControlPlane, Ports
from tests.cluster.kubectl import Kubectl
from tests.cluster.providers import Cluster
from tests.cluster.providers.local import remove
from tests.cluster.shell import ClusterError, Say

NODES = 3
_PLACES = 8


@dataclass(frozen=True)
class ApiServer:
    """etcd, API server and controller manager (so that garbage collection works), on free loopback ports."""

    kubectl: Kubectl

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.kubectl.kubeconfig


@pytest.fixture(scope="session")
def say(request: pytest.FixtureRequest) -> Say:
    """Tell the user at once, past pytest's capture: a first build takes minutes."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    reporter = request.config.pluginmanager.getplugin("terminalreporter")

    def line(text: str) -> None:
        if reporter is None or capture is None:
            return
        with capture.global_and_fixture_disabled():
            reporter.write_line(f"[cluster] {text}")

    return line


@contextmanager
def control_plane(say: Say) -> Iterator[ApiServer]:
    """A control plane of one's own, while the context lasts. Needs no root."""
    binaries = programs.find(programs.CONTROL_PLANE, say)
    name, held = _place("api")
    remove(name)
    plane = ControlPlane(cache.clusters() / name, binaries, ports=Ports.free())
    try:
        plane.start(scheduler=False)
        yield ApiServer(Kubectl(binaries["kubectl"], plane.kubeconfig))
    finally:
        remove(name)
        os.close(held)


@pytest.fixture(scope="session")
def api_server(say: Say) -> Iterator[ApiServer]:
    """The session's control plane, on which an operator may be at work."""
    with control_plane(say) as made:
        yield made


@pytest.fixture(scope="session")
def cluster(say: Say) -> Iterator[Cluster]:
    """A cluster with nodes, each with a ``rex.dev/device`` label and GPUs on offer; see ``providers``."""
    name, held = _place("test")
    running = providers.choose(name, NODES, say)
    try:
        yield running
    finally:
        running.stop()
        os.close(held)


@pytest.fixture(scope="session")
def worker_image(cluster: Cluster, say: Say) -> str:
    """Name of the worker image (without torch: see ``host_python``), on every node."""
    name = images.NAMES["worker"]
    cluster.load_image(images.build("worker", name, say))
    return name


def _place(kind: str) -> tuple[str, int]:
    """A cluster name that no living test run uses, and the lock that says so while this process lives."""
    for index in range(_PLACES):
        held = cache.try_lock(f"cluster-{kind}{index}")
        if held is not None:
            return f"{kind}{index}", held
    raise ClusterError(f"{_PLACES} test runs use clusters already; wait for one to end")
