"""The fixture without nodes is Kubernetes all the same: it checks, and collects garbage."""

from __future__ import annotations

import pytest

from tests.cluster.fixtures import ApiServer
from tests.cluster.shell import ClusterError

pytestmark = pytest.mark.component


def _config_map(name: str, **metadata: object) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}}


def test_what_belongs_to_a_deleted_owner_goes(api_server: ApiServer) -> None:
    kubectl = api_server.kubectl
    kubectl.apply(_config_map("owner"), namespace="default")
    owner = kubectl.get("configmap", "owner", "default")
    assert owner is not None
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    kubectl.apply(_config_map("owned", ownerReferences=[reference]), namespace="default")
    kubectl("delete", "configmap", "owner", "-n", "default")
    kubectl.wait_gone("configmap", "owned", namespace="default", seconds=60)


def test_bad_object_is_refused_in_the_servers_words(api_server: ApiServer) -> None:
    with pytest.raises(ClusterError, match="a lowercase RFC 1123 subdomain"):
        api_server.kubectl.apply(_config_map("Not_A_Name"), namespace="default")


def test_wait_tells_what_it_last_saw(api_server: ApiServer) -> None:
    with pytest.raises(ClusterError, match=r"(?s)never-there: not red within 1 s; last seen: \(not there\)"):
        api_server.kubectl.wait("configmap", "never-there", lambda _: False, namespace="default", seconds=1, what="red")
