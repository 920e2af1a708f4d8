"""A real API server with our CRD, an operator process for the session, and a scene per test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from rex_operator.controller.kube import Kube
from tests.cluster.fixtures import ApiServer
from tests.cluster.ports import quiet_port
from tests.controller.operator_process import OperatorProcess
from tests.controller.scene import Scene


@pytest.fixture(scope="session")
def operator(rex_server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """The operator, at work; a test that ends it must start it again and wait until it leads."""
    rex_server.kubectl("create", "namespace", "rex-system")
    made = OperatorProcess(rex_server.kubeconfig, tmp_path_factory.mktemp("operator"), quiet_port(), quiet_port())
    made.start()
    try:
        asyncio.run(made.leads())  # the first test may be one that ends it
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
