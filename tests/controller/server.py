"""API servers that know RexJobs: the session's, with an operator at work, and one for tests that want none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.fixtures import ApiServer, control_plane
from tests.cluster.kubectl import Object
from tests.cluster.shell import ClusterError, Say

CRD = Path(__file__).parents[2] / "crds" / "rexjobs.yaml"


def _established(crd: Object) -> bool:
    conditions = crd.get("status", {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def knowing_rexjobs(server: ApiServer) -> ApiServer:
    """Return the API server once it knows RexJobs."""
    server.kubectl("apply", "--server-side", "-f", str(CRD))
    server.kubectl.wait("crd", "rexjobs.rex.dev", _established, what="established", seconds=60)
    deadline = time.monotonic() + 60
    while not _served(server):  # a moment after it is established
        assert time.monotonic() < deadline, "RexJobs are established but not served"
        time.sleep(0.1)
    return server


def _served(server: ApiServer) -> bool:
    try:
        server.kubectl("get", "rexjobs", "--all-namespaces")
    except ClusterError:
        return False
    return True


@pytest.fixture(scope="session")
def rex_server(api_server: ApiServer) -> ApiServer:
    """The session's API server, knowing RexJobs."""
    return knowing_rexjobs(api_server)


@pytest.fixture(scope="module")
def quiet_server(say: Say) -> Iterator[ApiServer]:
    """A server of the module's own: an operator on the session's would write the same jobs, in any order of tests."""
    with control_plane(say) as made:
        yield knowing_rexjobs(made)
