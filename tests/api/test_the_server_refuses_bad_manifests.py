"""The same tables on a real API server, with no operator near: the schema itself refuses."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator

import pytest

from tests.api.manifests import BAD, Bad, Manifest, changed, manifest
from tests.cluster.fixtures import ApiServer
from tests.cluster.shell import ClusterError

pytestmark = pytest.mark.component


def send(server: ApiServer, job: Manifest, *how: str) -> str:
    return server.kubectl(*how, "-f", "-", stdin=json.dumps(job))


@pytest.fixture(scope="module")
def created(rex_server: ApiServer) -> Iterator[Manifest]:
    job = manifest("immutable")
    send(rex_server, job, "create")
    yield job
    # Left behind, it would be run by the operator of later tests and take their devices.
    rex_server.kubectl("delete", "rexjob", "immutable", "--wait")


def test_the_good_manifest_is_accepted_and_defaults_are_shown(rex_server: ApiServer) -> None:
    made = json.loads(send(rex_server, manifest(), "create", "--dry-run=server", "-o", "json"))
    assert made["spec"]["planner"]["validation"]["alpha"] == 0.05
    assert made["spec"]["pools"][0]["minWorkers"] == 0
    assert made["spec"]["template"] == manifest()["spec"]["template"], "the template is kept as it was written"


@pytest.mark.parametrize("bad", BAD, ids=[bad[0] for bad in BAD])
def test_a_bad_manifest_is_refused_by_the_server(rex_server: ApiServer, bad: Bad) -> None:
    _, make, where = bad
    with pytest.raises(ClusterError) as refused:
        send(rex_server, make(), "create", "--dry-run=server")
    assert where.split("[")[0] in str(refused.value)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("spec.template.spec.containers", [{"name": "trainer", "image": "other"}], "template is immutable"),
        ("spec.template.spec.nodeName", "n", "template is immutable"),
        ("spec.template.metadata.labels.team", "other", "template is immutable"),
        ("spec.pools.0.name", "renamed", "pools cannot be added, removed or renamed"),
        ("spec.pools.0.devicesPerPod", 2, "devicesPerPod is immutable"),
        ("spec.checkpoint.path", "elsewhere", "checkpoint is immutable"),
        ("spec.checkpoint-", None, "checkpoint is immutable"),
    ],
)
def test_what_running_workers_rest_on_cannot_change(
    rex_server: ApiServer, created: Manifest, path: str, value: object, words: str
) -> None:
    with pytest.raises(ClusterError, match=words):
        send(rex_server, changed(path, value, copy.deepcopy(created)), "replace")


def test_sizes_and_priorities_can_change(rex_server: ApiServer, created: Manifest) -> None:
    edited = changed("spec.workers.max", 6, changed("spec.priority", 5, created))
    send(rex_server, edited, "replace")


def test_short_name_category_and_columns(rex_server: ApiServer, created: Manifest) -> None:
    narrow = rex_server.kubectl("get", "rj", "immutable").splitlines()[0].split()
    assert narrow == ["NAME", "PHASE", "WORKERS", "POOLS", "BATCH", "GOODPUT", "PROGRESS", "RESTARTS", "AGE"]
    wide = rex_server.kubectl("get", "rexjob", "immutable", "-o", "wide").splitlines()[0].split()
    assert wide[len(narrow) :] == ["MIN", "MAX", "ETA", "PLAN", "REASON"]
    assert "rexjob.rex.dev/immutable" in rex_server.kubectl("get", "rex", "-o", "name")
