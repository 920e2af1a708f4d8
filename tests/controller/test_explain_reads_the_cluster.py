"""``rex explain NAME`` asks a real API server, with no more rights than the user has, and says what it may not see."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from rex_operator.api import JobStatus
from rex_operator.cli.app import app
from rex_operator.controller.figures import training
from rex_operator.controller.memory import FIELD, pack
from rex_operator.controller.names import Owner
from rex_operator.jobs import SavedState
from rex_operator.planning import Planner
from tests.api.manifests import manifest
from tests.cli.test_explain import ALL
from tests.cli.test_screen import training as view_of
from tests.cluster.fixtures import ApiServer
from tests.cluster.kubectl import Kubectl
from tests.cluster.shell import ClusterError
from tests.planning.simulated import spec

pytestmark = pytest.mark.component

RIGHTS: dict[str, list[dict[str, list[str]]]] = {
    "nothing": [],
    "jobs": [{"apiGroups": ["rex.dev"], "resources": ["rexjobs"], "verbs": ["get"]}],
}


class Place:
    """A namespace with one job that has decided something, and users with few rights."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.kubectl, self.folder, self.name = server.kubectl, folder, f"t-{uuid.uuid4().hex[:8]}"
        self.kubectl("create", "namespace", self.name)

    def job(self, name: str) -> Owner:
        made = manifest(name)
        made["metadata"]["namespace"] = self.name
        made["spec"]["suspend"] = True
        self.kubectl("create", "-f", "-", stdin=json.dumps(made))
        held = self.kubectl.get("rexjob", name, self.name) or {}
        return Owner(self.name, name, held["metadata"]["uid"])

    def decided(self, name: str) -> None:
        owner = self.job(name)
        planner = Planner(spec(), np.random.default_rng(0)).state().model_copy(update={"decisions": ALL})
        state = pack(SavedState(planner=planner))
        body = {"apiVersion": "v1", "kind": "ConfigMap", "binaryData": {FIELD: state}}
        self.kubectl.apply({**body, "metadata": owner.metadata(owner.state)})
        status = JobStatus().model_copy(update=training(JobStatus(), view_of())).dump()
        self.kubectl.patch("rexjob", name, {"status": status}, namespace=self.name, subresource="status")

    def user(self, name: str) -> Path:
        """The kubeconfig of a service account with those ``RIGHTS``."""
        self.kubectl("create", "serviceaccount", name, "-n", self.name)
        meta = {"name": name, "namespace": self.name}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        subject = {"kind": "ServiceAccount", **meta}
        api = "rbac.authorization.k8s.io/v1"
        self.kubectl.apply(
            {"apiVersion": api, "kind": "Role", "metadata": meta, "rules": RIGHTS[name]},
            {"apiVersion": api, "kind": "RoleBinding", "metadata": meta, "roleRef": reference, "subjects": [subject]},
        )
        token = self.kubectl("create", "token", name, "-n", self.name).strip()
        config: dict[str, Any] = yaml.safe_load(self.kubectl.kubeconfig.read_text())
        config["users"] = [{"name": "limited", "user": {"token": token}}]
        cluster = config["clusters"][0]["name"]
        context = {"cluster": cluster, "user": "limited", "namespace": self.name}
        config["contexts"] = [{"name": "mine", "context": context}]
        config["current-context"] = ""
        file = self.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(config))
        self._await_rights(file, name)
        return file

    def _await_rights(self, file: Path, name: str) -> None:
        """Rights are in force a moment after they are written."""
        ask = Kubectl(self.kubectl.program, file)
        deadline = time.monotonic() + 60
        for rule in RIGHTS[name]:
            for verb in rule["verbs"]:
                while not _granted(ask, verb, f"{rule['resources'][0]}.{rule['apiGroups'][0]}", self.name):
                    assert time.monotonic() < deadline, f"{name}: never allowed to {verb}"
                    time.sleep(0.1)


def _granted(kubectl: Kubectl, verb: str, resource: str, namespace: str) -> bool:
    try:
        return kubectl("--context=mine", "auth", "can-i", verb, resource, "-n", namespace).strip() == "yes"
    except ClusterError:  # a "no" is an error
        return False


@pytest.fixture(scope="module")
def place(quiet_server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Place:
    made = Place(quiet_server, tmp_path_factory.mktemp("users"))
    made.decided("digits")
    return made


def rex(*words: str) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["explain", *words])
    return result.exit_code, result.output


def test_all_that_the_planner_has_kept_is_told(place: Place) -> None:
    code, output = rex("digits", "-n", place.name, "--kubeconfig", str(place.kubectl.kubeconfig))
    assert code == 0, output
    assert f"RexJob {place.name}/digits: 3 decisions, from ConfigMap rex-digits-state" in output
    assert "p(better) 0.00014" in output
    assert "Expectations of 1 trial" in output


def test_as_json(place: Place) -> None:
    code, output = rex("digits", "-n", place.name, "--kubeconfig", str(place.kubectl.kubeconfig), "--json")
    assert code == 0, output
    assert [decision["kind"] for decision in json.loads(output)["decisions"]] == [record.kind for record in ALL]


def test_a_user_who_may_read_jobs_only_gets_what_the_status_tells(place: Place) -> None:
    code, output = rex("digits", "--kubeconfig", str(place.user("jobs")), "--context", "mine")
    assert code == 0, output
    assert "You may not read ConfigMap rex-digits-state, which has more" in output
    assert "measured +50.0% (95 %: +40.0% to +60.0%)" in output


def test_a_user_who_may_read_nothing_is_told_so(place: Place) -> None:
    code, output = rex("digits", "--kubeconfig", str(place.user("nothing")), "--context", "mine")
    assert code == 3, output
    assert output.startswith(f"error: RexJob {place.name}/digits cannot be read: rexjobs.rex.dev")
    assert "forbidden" in output


def test_a_job_that_has_decided_nothing(place: Place) -> None:
    place.job("fresh")
    code, output = rex("fresh", "-n", place.name, "--kubeconfig", str(place.kubectl.kubeconfig))
    assert (code, output.strip()) == (0, f"RexJob {place.name}/fresh: no decision yet, from its status")


def test_a_job_that_is_not_there(place: Place) -> None:
    code, output = rex("digits", "-n", "default", "--kubeconfig", str(place.kubectl.kubeconfig))
    assert code == 2
    assert output.startswith("error: no RexJob 'digits' in namespace 'default'")


def test_a_context_that_is_not_there(place: Place) -> None:
    code, output = rex("digits", "--context", "nowhere", "--kubeconfig", str(place.kubectl.kubeconfig))
    assert code == 2
    assert "cannot be used" in output


def test_a_cluster_that_does_not_answer(place: Place) -> None:
    config = yaml.safe_load(place.kubectl.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    file = place.folder / "dead.yaml"
    file.write_text(yaml.safe_dump(config))
    code, output = rex("digits", "--kubeconfig", str(file))
    assert code == 3
    assert "cannot be reached" in output
