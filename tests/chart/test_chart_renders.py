"""What the chart makes, rendered by the real helm: names, rights, switches."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import yaml

from tests.chart.rendering import CHART, ROOT, Manifest, only, render
from tests.cluster.shell import ClusterError

pytestmark = pytest.mark.component


def test_copies_of_the_crd_are_current() -> None:
    crd = (ROOT / "crds" / "rexjobs.yaml").read_text()
    assert (CHART / "files" / "rexjobs.yaml").read_text() == crd
    assert (ROOT / "deploy" / "rexjobs.yaml").read_text() == crd


def test_the_chart_is_as_new_as_the_package() -> None:
    from rex_operator import __version__

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_c_195_no_namespace_but_the_releases(helm: Path) -> None:
    items = render(helm, namespace="mine")
    spaces = {item["metadata"].get("namespace") for item in items}
    assert spaces == {"mine", None}
    cluster_wide = {item["kind"] for item in items if "namespace" not in item["metadata"]}
    assert cluster_wide == {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
    assert "Namespace" not in {item["kind"] for item in items}


def test_c_184_two_releases_of_one_name_do_not_clash(helm: Path) -> None:
    def shared(namespace: str) -> set[tuple[str, str]]:
        items = render(helm, "--set=crds.enabled=false", namespace=namespace)
        return {(i["kind"], i["metadata"]["name"]) for i in items if "namespace" not in i["metadata"]}

    assert shared("a") and shared("a").isdisjoint(shared("b"))


def test_c_185_without_cluster_rights_there_is_no_cluster_role(helm: Path) -> None:
    items = render(helm, "--set=watch.clusterWide=false", "--set=crds.enabled=false")
    assert not [item for item in items if item["kind"].startswith("Cluster")]
    arguments = only(items, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--watch-namespaces=here" in arguments
    spread = render(helm, "--set=watch.clusterWide=false", "--set=watch.namespaces={a,b}", "--set=crds.enabled=false")
    assert {i["metadata"]["namespace"] for i in spread if i["metadata"]["name"].endswith("-jobs")} == {"a", "b"}


def test_c_182_the_definition_is_kept_on_uninstall_unless_told_otherwise(helm: Path) -> None:
    kept = only(render(helm), "CustomResourceDefinition")
    assert kept["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    loose = only(render(helm, "--set=crds.keep=false"), "CustomResourceDefinition")
    assert "helm.sh/resource-policy" not in loose["metadata"]["annotations"]
    assert kept["spec"] == yaml.safe_load((ROOT / "crds" / "rexjobs.yaml").read_text())["spec"]


def test_c_193_the_pod_fits_the_restricted_profile(helm: Path) -> None:
    pod = only(render(helm), "Deployment")["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "runAsUser" not in pod["securityContext"], "a cluster that assigns user ids must be free to"


def test_no_right_is_a_wildcard_and_secrets_are_read_by_name_only(helm: Path) -> None:
    for item in render(helm):
        for rule in item.get("rules", []) if item["kind"].endswith("Role") else []:
            assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
            if "secrets" in rule["resources"]:
                assert rule["verbs"] == ["create"] or rule["resourceNames"] == ["rex-rex-operator-channel-tls"]
            assert not {"pods/exec", "pods/attach", "pods/log"} & set(rule["resources"])


def test_the_manifests_grant_what_the_chart_grants(helm: Path) -> None:
    def rights(items: list[Manifest], ending: str) -> set[str]:
        return {
            str(sorted((k, v) for k, v in rule.items() if k != "resourceNames"))
            for item in items
            if item["kind"] in ("Role", "ClusterRole") and item["metadata"]["name"].endswith(ending)
            for rule in item["rules"]
        }

    plain = [item for item in yaml.safe_load_all((ROOT / "deploy" / "rbac.yaml").read_text()) if item]
    assert rights(plain, "rex-operator") == rights(render(helm), "rex-operator")


def test_c_194_optional_things_are_off_or_harmless(helm: Path) -> None:
    assert "ServiceMonitor" not in {item["kind"] for item in render(helm)}
    with pytest.raises(ClusterError, match="no ServiceMonitor kind"):
        render(helm, "--set=metrics.serviceMonitor.enabled=true")
    monitored = render(helm, "--set=metrics.serviceMonitor.enabled=true", "--api-versions=monitoring.coreos.com/v1")
    service = only(monitored, "Service", "-metrics")
    chosen = only(monitored, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert chosen.items() <= service["metadata"]["labels"].items()


def test_c_194_every_combination_of_switches_renders(helm: Path) -> None:
    switches = ["crds.enabled", "rbac.create", "serviceAccount.create", "networkPolicy.enabled", "watch.clusterWide"]
    for values in itertools.product(("true", "false"), repeat=len(switches)):
        options = [f"--set={key}={value}" for key, value in zip(switches, values, strict=True)]
        kinds = {item["kind"] for item in render(helm, *options)}
        assert {"Deployment", "Service"} <= kinds
        assert ("NetworkPolicy" in kinds) == (values[3] == "true")


def test_a_budget_only_with_several_replicas(helm: Path) -> None:
    assert "PodDisruptionBudget" not in {item["kind"] for item in render(helm)}
    assert "PodDisruptionBudget" in {item["kind"] for item in render(helm, "--set=replicas=2")}


@pytest.mark.parametrize("bad", ["replica=2", "replicas=two", "logLevel=loud", "image.digest=abc", "channel.port=0"])
def test_a_bad_value_is_refused(helm: Path, bad: str) -> None:
    with pytest.raises(ClusterError, match=bad.split("=")[0].split(".")[0]):
        render(helm, f"--set={bad}")


def test_a_digest_goes_before_the_tag(helm: Path) -> None:
    digest = "sha256:" + "a" * 64
    made = only(render(helm, f"--set=image.digest={digest}", "--set=image.tag=x"), "Deployment")
    assert made["spec"]["template"]["spec"]["containers"][0]["image"] == f"rex-operator@{digest}"


def test_long_names_fit(helm: Path) -> None:
    for item in render(helm, name="r" * 53):
        if item["kind"] != "CustomResourceDefinition" and not item["kind"].startswith("Cluster"):
            assert len(item["metadata"]["name"]) <= 63
