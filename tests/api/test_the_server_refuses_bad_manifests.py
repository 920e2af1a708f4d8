"""The same tables on a real API server, with no operator near: the schema itself refuses."""

from __future__ import annotations

import copy
import json

import pytest

from tests.api.manifests import BAD, Bad, Manifest, changed, manifest
from tests.cluster.fixtures import ApiServer
from tests.cluster.shell import ClusterError

pytestmark = pytest.mark.component


def send(server: ApiServer, job: Manifest, *how: str) -> str:
    return server.kubectl(*how, "-f", "-", stdin=json.dumps(job))


@pytest.fixture(scope="module")
def created(quiet_server: ApiServer) -> Manifest:
    job = manifest("immutable")
    send(quiet_server, job, "create")
    return job


def test_the_good_manifest_is_accepted_and_defaults_are_shown(quiet_server: ApiServer) -> None:
    made = json.loads(send(quiet_server, manifest(), "create", "--dry-run=server", "-o", "json"))
    assert made["spec"]["planner"]["validation"]["alpha"] == 0.05
    assert made["spec"]["pools"][0]["minWorkers"] == 0
    assert made["spec"]["template"] == manifest()["spec"]["template"], "the template is kept as it was written"


@pytest.mark.parametrize("bad", BAD, ids=[bad[0] for bad in BAD])
def test_a_bad_manifest_is_refused_by_the_server(quiet_server: ApiServer, bad: Bad) -> None:
    _, make, where = bad
    with pytest.raises(ClusterError) as refused:
        send(quiet_server, make(), "create", "--dry-run=server")
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
    quiet_server: ApiServer, created: Manifest, path: str, value: object, words: str
) -> None:
    with pytest.raises(ClusterError, match=words):
        send(quiet_server, changed(path, value, copy.deepcopy(created)), "replace")


def test_sizes_and_priorities_can_change(quiet_server: ApiServer, created: Manifest) -> None:
    edited = changed("spec.workers.max", 6, changed("spec.priority", 5, created))
    send(quiet_server, edited, "replace")


def test_short_name_category_and_columns(quiet_server: ApiServer, created: Manifest) -> None:
    narrow = quiet_server.kubectl("get", "rj", "immutable").splitlines()[0].split()
    assert narrow == ["NAME", "PHASE", "WORKERS", "POOLS", "BATCH", "GOODPUT", "PROGRESS", "RESTARTS", "AGE"]
    wide = quiet_server.kubectl("get", "rexjob", "immutable", "-o", "wide").splitlines()[0].split()
    assert wide[len(narrow) :] == ["MIN", "MAX", "ETA", "PLAN", "REASON"]
    assert "rexjob.rex.dev/immutable" in quiet_server.kubectl("get", "rex", "-o", "name")
