"""C-030 and its kind: a job that cannot run is told so in plain words, and the others do not notice."""

from __future__ import annotations

import pytest

from rex_operator.controller.kube import PODS, KubeError, Resource
from tests.controller.scene import Scene

pytestmark = pytest.mark.component

QUOTAS = Resource("v1", "resourcequotas")


async def test_c_030_a_template_that_the_server_refuses_ends_with_its_words(scene: Scene) -> None:
    await scene.nodes(a100=1)
    bad = scene.job("no-volume", pools={"a100": 1})
    bad["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    imageless = scene.job("no-image", pools={"a100": 1})
    del imageless["spec"]["template"]["spec"]["containers"][0]["image"]
    for job in (bad, imageless):
        await scene.create(job)
    await scene.create(scene.job("good", pools={"a100": 1}))
    told = await scene.wait_phase("no-volume", "Failed")
    assert "volumeMounts[0].name" in told["message"]
    assert next(c for c in told["conditions"] if c["type"] == "Validated")["status"] == "False"
    assert "image: Required value" in (await scene.wait_phase("no-image", "Failed"))["message"]
    await scene.wait_phase("good", "Succeeded")
    assert await scene.pods("no-volume") == {}


async def test_c_030_a_quota_blocks_and_lets_go(scene: Scene) -> None:
    await scene.nodes(a100=1)
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    await scene.kube.create(QUOTAS, scene.namespace, body)

    container = {"name": "trainer", "image": "x"}
    probe = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": {"containers": [container]}}

    async def refused() -> bool:
        try:
            await scene.kube.create(PODS, scene.namespace, probe, dry_run=True)
        except KubeError as error:
            return "exceeded quota" in error.message
        return False

    await scene.until(refused, "the quota holds")
    await scene.create(scene.job("blocked", ["sleep", "1000"], pools={"a100": 1}))
    told = await scene.wait("blocked", lambda s: s.get("reason") == "PodsRefused", "the quota is told")
    assert "exceeded quota" in told["message"] and told["phase"] == "Pending"
    await scene.kube.delete(QUOTAS, scene.namespace, "none")
    await scene.wait("blocked", lambda s: s["workers"]["desired"] == 1, "it goes on")


async def test_a_script_that_raises_uses_up_its_budget(scene: Scene) -> None:
    await scene.nodes(a100=1)
    job = scene.job("raises", ["sh", "-c", "exit 3"], pools={"a100": 1}, failure={"maxRestarts": 1})
    await scene.create(job)
    told = await scene.wait_phase("raises", "Failed")
    assert told["reason"] == "WorkersFailed" and "failure.maxRestarts (1) is used up" in told["message"]
    assert told["restarts"]["charged"] == 1
    assert [f["exitCode"] for f in told["failures"]] == [3, 3]
    await scene.wait_told("raises", "WorkerFailed")


async def test_a_script_that_never_calls_rex(scene: Scene) -> None:
    await scene.nodes(a100=2)
    await scene.create(scene.job("ends", ["true"], pools={"a100": 1}))
    assert (await scene.wait_phase("ends", "Failed"))["reason"] == "NeverConnected"
    hangs = scene.job("hangs", ["sleep", "1000"], pools={"a100": 1}, pendingDeadlineSeconds=3)
    await scene.create(hangs)
    told = await scene.wait_phase("hangs", "Failed")
    assert told["reason"] == "NeverConnected" and "rex.init()" in told["message"]
    await scene.until(lambda: scene.kubelet.process("hangs-w0-0").returncode is not None, "the pod is cleaned up")


async def test_c_013_a_pool_that_no_node_matches(scene: Scene) -> None:
    await scene.nodes(a100=1)
    job = scene.job("misspelt", ["true"], pools={"a100": 1}, pendingDeadlineSeconds=3)
    job["spec"]["pools"][0]["nodeSelector"]["rex.dev/device"] = "A100"
    await scene.create(job)
    hint = "did you mean rex.dev/device=a100?"  # not before the operator has seen the node
    told = await scene.wait("misspelt", lambda s: hint in s.get("message", ""), "the selector is named")
    assert told["reason"] == "NoMatchingNodes"
    await scene.wait_phase("misspelt", "Failed")


async def test_c_011_a_reserved_variable_is_refused(scene: Scene) -> None:
    await scene.nodes(a100=1)
    job = scene.job("reserved", pools={"a100": 1})
    job["spec"]["template"]["spec"]["containers"][0]["env"].append({"name": "REX_TOKEN_FILE", "value": "/x"})
    await scene.create(job)
    assert "REX_TOKEN_FILE" in (await scene.wait_phase("reserved", "Failed"))["message"]
