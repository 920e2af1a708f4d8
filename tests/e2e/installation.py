"""The operator on the cluster, installed as users do: by `kubectl apply -k deploy/` or by Helm."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import images, programs
from tests.cluster.images import REPOSITORY
from tests.cluster.kubectl import Object
from tests.cluster.providers import Cluster
from tests.cluster.shell import ClusterError, Say, run

MANIFESTS = REPOSITORY / "deploy"
CHART = REPOSITORY / "charts" / "rex-operator"
CRD = "rexjobs.rex.dev"
RELEASE = "rex"
_SELECTOR = "app.kubernetes.io/name=rex-operator"


class Installation:
    """At most one operator on the cluster, with the image of this tree under the name that the manifests give."""

    def __init__(self, cluster: Cluster, say: Say) -> None:
        self._cluster = cluster
        self._kubectl = cluster.kubectl
        self._say = say
        self.way = ""

    def by_manifests(self) -> None:
        """Have exactly what ``deploy/`` describes."""
        if self.way != "manifests":
            self.remove()
            self._load_images_of(self._kubectl("kustomize", MANIFESTS))
            self._kubectl("apply", "-k", MANIFESTS)
            self._await_rollout()
            self.way = "manifests"

    def by_helm(self, *options: str) -> None:
        """Have exactly what the chart makes with ``options``."""
        self.remove()
        self._load_images_of(self._helm("template", RELEASE, CHART, "--kube-version=1.36.3", *options))
        self._helm("install", RELEASE, CHART, "--namespace=rex-system", "--create-namespace", "--wait", *options)
        self.way = "helm"

    def remove(self) -> None:
        """Have no operator and no RexJob kind, whatever was there."""
        self._kubectl("delete", "crd", CRD, "--ignore-not-found", "--timeout=60s")
        self.uninstall_chart()
        if MANIFESTS.is_dir():
            self._kubectl("delete", "-k", MANIFESTS, "--ignore-not-found", "--timeout=90s", timeout=120)
        self.way = ""

    def uninstall_chart(self) -> None:
        """Uninstall the release, if there is one."""
        for release in json.loads(self._helm("list", "--all-namespaces", "--all", "--output=json")):
            if release["name"] == RELEASE:
                self._helm("uninstall", RELEASE, f"--namespace={release['namespace']}", "--wait")
                self.way = ""

    @property
    def namespace(self) -> str:
        """Where the operator runs."""
        return str(self._deployment()["metadata"]["namespace"])

    @property
    def container(self) -> str:
        """Name of the operator's container."""
        return str(self._deployment()["spec"]["template"]["spec"]["containers"][0]["name"])

    def pod(self) -> Object:
        """The operator's pod that is ready."""
        for pod in self._kubectl.list("pods", selector=_SELECTOR):
            if _ready(pod) and "deletionTimestamp" not in pod["metadata"]:
                return pod
        raise ClusterError(f"no operator pod is ready\n{self.log()}")

    def wait_ready_again(self, killed: Object) -> Object:
        """The pod after its container was killed and started again."""
        before = _restarts(killed)
        return self._kubectl.wait(
            "pod",
            killed["metadata"]["name"],
            lambda pod: _restarts(pod) > before and _ready(pod),
            namespace=killed["metadata"]["namespace"],
            seconds=120,
            what="ready again",
        )

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """No operator runs inside the block."""
        name, replicas = self._deployment()["metadata"]["name"], self._deployment()["spec"]["replicas"]
        place = (f"deployment/{name}", "-n", self.namespace)
        self._kubectl("scale", *place, "--replicas=0")
        try:
            for pod in self._kubectl.list("pods", selector=_SELECTOR):
                meta = pod["metadata"]
                self._kubectl.wait_gone("pod", meta["name"], namespace=meta["namespace"], seconds=60)
            yield
        finally:
            self._kubectl("scale", *place, f"--replicas={replicas}")
            self._await_rollout()

    def log(self) -> str:
        """What the operators have logged, the killed ones' last words too."""
        words = []
        for pod in self._kubectl.list("pods", selector=_SELECTOR):
            place = ("-n", pod["metadata"]["namespace"], pod["metadata"]["name"])
            words.append(self._kubectl("logs", *place, "--tail=120"))
            if _restarts(pod):
                words.append("of the one before:\n" + self._kubectl("logs", *place, "--previous", "--tail=60"))
        return "\n".join(words)

    def _deployment(self) -> Object:
        found = self._kubectl.list("deployments", selector=_SELECTOR)
        if len(found) != 1:
            raise ClusterError(f"{len(found)} deployments have the label {_SELECTOR}; one should")
        return found[0]

    def _await_rollout(self) -> None:
        name = self._deployment()["metadata"]["name"]
        try:
            self._kubectl(
                "rollout", "status", f"deployment/{name}", "-n", self.namespace, "--timeout=150s", timeout=180
            )
        except ClusterError as error:
            pods = self._kubectl("describe", "pods", "-n", self.namespace)
            raise ClusterError(f"{error}\n{pods[-4000:]}\n{self.log()}") from None

    def _load_images_of(self, manifests: str) -> None:
        names = set(re.findall(r"^\s*(?:- )?image: *[\"']?([^\s\"']+)", manifests, flags=re.MULTILINE))
        if len(names) != 1:
            raise ClusterError(f"the manifests name {sorted(names)}; one operator image was expected")
        self._cluster.load_image(images.build("operator", names.pop(), self._say))

    def _helm(self, *arguments: str | Path) -> str:
        program = programs.find(["helm"], self._say)["helm"]
        return run(program, *arguments, "--kubeconfig", self._cluster.kubeconfig, timeout=240)


def _ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _restarts(pod: Object) -> int:
    return sum(int(status["restartCount"]) for status in pod.get("status", {}).get("containerStatuses", []))
