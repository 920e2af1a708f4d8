"""A real API server with our CRD, an operator process for the session, and a scene per test."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from rex_operator.controller.kube import Kube, Object
from tests.cluster.fixtures import ApiServer
from tests.controller.operator_process import OperatorProcess
from tests.controller.scene import Scene

CRD = Path(__file__).parents[2] / "crds" / "rexjobs.yaml"


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _established(crd: Object) -> bool:
    conditions = crd.get("status", {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


@pytest.fixture(scope="session")
def rex_server(api_server: ApiServer) -> ApiServer:
    """The API server, knowing RexJobs."""
    api_server.kubectl("apply", "--server-side", "-f", str(CRD))
    api_server.kubectl.wait("crd", "rexjobs.rex.dev", _established, what="established", seconds=30)
    return api_server


@pytest.fixture(scope="session")
def operator(rex_server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """The operator, running; a test that ends it must start it again."""
    rex_server.kubectl("create", "namespace", "rex-system")
    made = OperatorProcess(rex_server.kubeconfig, tmp_path_factory.mktemp("operator"), _free_port(), _free_port())
    made.start()
    try:
        yield made
    finally:
        made.kill()


@pytest.fixture
async def kube(rex_server: ApiServer) -> AsyncIterator[Kube]:
    """A connection as administrator."""
    made = await Kube.connect(str(rex_server.kubeconfig))
    yield made
    await made.close()


@pytest.fixture
async def scene(kube: Kube, operator: OperatorProcess) -> AsyncIterator[Scene]:
    """A namespace, with nodes as the test adds them."""
    async with Scene(kube, operator) as made:
        yield made
