"""The operator on the cluster, a namespace per test, and a report of the cluster's state with each failure."""

from __future__ import annotations

import re
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.cluster.providers import Cluster
from tests.cluster.shell import ClusterError, Say
from tests.e2e.installation import Installation

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            # Images are built and a cluster comes up in the first test's set-up: minutes that are not the test's own.
            item.add_marker(pytest.mark.timeout(600, func_only=True))
    # Each change between the ways of installation costs half a minute: the chart's tests come last.
    items.sort(key=lambda item: "helm" in item.path.name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    arguments = getattr(item, "funcargs", {})
    cluster = arguments.get("cluster")
    if report.failed and call.when != "teardown" and isinstance(cluster, Cluster):
        report.sections.append(("the cluster", _describe(cluster, arguments.get("namespace"))))
    return report


@pytest.fixture(scope="session")
def installation(cluster: Cluster, say: Say) -> Iterator[Installation]:
    """Installs and removes the operator; gone after the session from a cluster that stays."""
    made = Installation(cluster, say)
    yield made
    made.remove()


@pytest.fixture
def operator(installation: Installation) -> Installation:
    """The operator of ``deploy/``, running."""
    installation.by_manifests()
    return installation


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh namespace; it and all in it go after the test."""
    stem = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())[:40].strip("-")
    name = f"{stem}-{uuid.uuid4().hex[:6]}"
    cluster.kubectl("create", "namespace", name)
    yield name
    if cluster.kubectl.get("crd", "rexjobs.rex.dev") is not None:
        cluster.kubectl("delete", "rexjobs", "--all", "-n", name, "--timeout=60s")
    cluster.kubectl("delete", "namespace", name, "--wait=false")
    cluster.kubectl("delete", "pods", "--all", "-n", name, "--grace-period=0", "--force", "--wait=false")


def _describe(cluster: Cluster, namespace: str | None) -> str:
    kubectl = cluster.kubectl
    parts: list[str] = []

    def ask(title: str, *arguments: str, end: int = 6000) -> None:
        try:
            parts.append(f"--- {title}\n{kubectl(*arguments)[-end:]}")
        except ClusterError as error:
            parts.append(f"--- {title}: {error}")

    ask("nodes and pods", "get", "nodes,pods", "--all-namespaces", "-o", "wide")
    if namespace is not None:
        ask("jobs", "get", "rexjobs", "-n", namespace, "-o", "yaml", end=12_000)
        ask("events", "get", "events", "-n", namespace, "--sort-by=.metadata.creationTimestamp")
        for pod in kubectl.list("pods", namespace):
            name = pod["metadata"]["name"]
            ask(f"log of {name}", "logs", name, "-n", namespace, "--all-containers", "--tail=40")
    try:
        parts.append(f"--- operator\n{Installation(cluster, lambda _: None).log()[-10_000:]}")
    except ClusterError as error:
        parts.append(f"--- operator: {error}")
    parts.append(f"--- the cluster's own parts\n{cluster.diagnose()[-8000:]}")
    return "\n".join(parts)
