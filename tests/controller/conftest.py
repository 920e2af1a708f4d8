"""A real API server with our CRD, an operator process for the session, and a scene per test."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from rex_operator.controller.kube import Kube
from tests.cluster.fixtures import ApiServer
from tests.controller.operator_process import OperatorProcess
from tests.controller.scene import Scene


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


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
