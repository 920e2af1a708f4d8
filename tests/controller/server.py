"""The session's API server, knowing RexJobs; shared by the tests of the API and of the controller."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.fixtures import ApiServer
from tests.cluster.kubectl import Object

CRD = Path(__file__).parents[2] / "crds" / "rexjobs.yaml"


def _established(crd: Object) -> bool:
    conditions = crd.get("status", {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def knowing_rexjobs(server: ApiServer) -> ApiServer:
    """Return the API server once it knows RexJobs."""
    server.kubectl("apply", "--server-side", "-f", str(CRD))
    server.kubectl.wait("crd", "rexjobs.rex.dev", _established, what="established", seconds=30)
    return server


@pytest.fixture(scope="session")
def rex_server(api_server: ApiServer) -> ApiServer:
    """The session's API server, knowing RexJobs."""
    return knowing_rexjobs(api_server)
