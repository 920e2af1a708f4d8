"""Growing, shrinking, suspending, waiting and making way, on a real API server."""

from __future__ import annotations

import asyncio

import pytest

from rex_operator.controller.kube import PODS, REXJOBS, SERVICES, KubeError, Object
from rex_operator.controller.names import DRAINING_ANNOTATION
from tests.controller.scene import Scene

pytestmark = pytest.mark.component

IDLE = ["sleep", "1000"]
LONG = 100_000
"""Epochs: longer than any test."""


def live(pods: dict[str, Object]) -> list[str]:
    return [name for name, pod in pods.items() if "deletionTimestamp" not in pod["metadata"]]


async def test_c_196_the_scale_subresource_works_and_selects_just_the_workers(scene: Scene) -> None:
    await scene.nodes(a100=4)
    await scene.create(scene.job("scaled", IDLE, pools={"a100": 4}, workers={"min": 1, "max": 2}))
    await scene.wait("scaled", lambda s: s.get("replicas") == 2, "two workers")
    path = REXJOBS.path(scene.namespace, "scaled", "scale")
    scale = await scene.kube.request("GET", path)
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (2, 2)
    selected, _ = await scene.kube.list(PODS, scene.namespace, labels=scale["status"]["selector"])
    assert {pod["metadata"]["name"] for pod in selected} == {"scaled-w0-0", "scaled-w1-0"}
    await scene.kube.request("PATCH", path, body={"spec": {"replicas": 3}}, content_type="application/merge-patch+json")
    await scene.wait("scaled", lambda s: s["replicas"] == 3, "three workers")


async def test_c_032_rapid_edits_end_at_the_last_size(scene: Scene) -> None:
    await scene.nodes(a100=8)
    await scene.create(scene.job("edited", IDLE, pools={"a100": 8}, workers={"min": 1, "max": 2}))
    for size in (8, 3, 6, 1, 4):
        await scene.patch("edited", workers={"max": size})
    generation = (await scene.get("edited"))["metadata"]["generation"]
    ids: list[str] = []

    async def four() -> bool:
        status, pods = await scene.status("edited"), await scene.pods("edited")
        there = [pods[name]["metadata"] for name in live(pods)]
        ids[:] = [meta["labels"]["rex.dev/worker"] for meta in there]
        staying = [meta for meta in there if DRAINING_ANNOTATION not in meta["annotations"]]
        return bool(status.get("observedGeneration") == generation and status["replicas"] == len(staying) == 4)

    await scene.until(four, "four workers, as the last edit says")
    assert len(set(ids)) == len(ids)


async def test_growing_and_planned_shrinking_restart_nobody(scene: Scene) -> None:
    await scene.nodes(a100=2)
    await scene.create(scene.job("elastic", epochs=LONG, workers={"min": 1, "max": 1}))
    alone = await scene.wait_phase("elastic", "Running")
    first = scene.kubelet.process("elastic-w0-0").pid
    await scene.patch("elastic", workers={"max": 2})
    await scene.wait_whole("elastic", 2, "two train together", beyond=alone["generation"])
    await scene.patch("elastic", workers={"max": 1})
    status = await scene.wait("elastic", lambda s: s["workers"]["summary"] == "1/1", "one again")
    await scene.until(lambda: scene.kubelet.process("elastic-w1-0").returncode == 0, "the other left by itself")
    assert scene.kubelet.process("elastic-w0-0").pid == first
    assert status["restarts"] == {"charged": 0, "uncharged": 0}


async def test_c_050_of_two_gangs_one_runs_and_the_other_holds_nothing(scene: Scene) -> None:
    await scene.nodes(a100=4)
    for name in ("left", "right"):
        await scene.create(scene.job(name, IDLE, pools={"a100": 4}, workers={"min": 3, "max": 3}))
    counts: list[int] = []

    async def one_is_there() -> bool:
        counts[:] = sorted([len(await scene.pods("left")), len(await scene.pods("right"))])
        return sum(counts) >= 3

    await scene.until(one_is_there, "one has its workers")
    for name in ("left", "right"):
        await scene.wait(name, lambda s: s.get("reason") in ("WaitingForRoom", "WaitingForWorkers"), "it is decided")
    await one_is_there()
    assert counts == [0, 3]


async def test_c_039_freed_devices_wake_who_waits(scene: Scene) -> None:
    await scene.nodes(a100=2)
    await scene.create(scene.job("first", IDLE))
    await scene.wait("first", lambda s: s.get("replicas") == 2, "the first holds all")
    await scene.create(scene.job("second", IDLE, pools={"a100": 1}))
    await scene.wait("second", lambda s: s.get("reason") == "WaitingForRoom", "the second waits")
    await scene.kube.delete(REXJOBS, scene.namespace, "first")
    await scene.wait("second", lambda s: s["replicas"] == 1, "the second has its device")


async def test_suspend_frees_everything_and_resume_goes_on(scene: Scene) -> None:
    await scene.nodes(a100=1)
    await scene.create(scene.job("paused", epochs=LONG, pools={"a100": 1}))
    before = await scene.wait_phase("paused", "Running")
    await scene.patch("paused", suspend=True)
    await scene.wait_phase("paused", "Suspended")

    async def all_removed() -> bool:
        return live(await scene.pods("paused")) == []

    await scene.until(all_removed, "pods that have ended are deleted after the status is written")
    await scene.patch("paused", suspend=False)
    after = await scene.wait_phase("paused", "Running")
    assert after["generation"] > before["generation"]
    assert after["restarts"] == {"charged": 0, "uncharged": 0}


async def test_a_pod_that_is_slow_to_go_trains_no_more_after_a_resume(scene: Scene) -> None:
    """The state that was saved names it as a member: a job that has no worker yet would be told to train."""
    await scene.nodes(a100=1)
    await scene.create(scene.job("slow", epochs=LONG, pools={"a100": 1}))
    before = await scene.wait_phase("slow", "Running")
    await hold(scene, "slow-w0-0", ["test/hold"])
    try:
        await scene.patch("slow", suspend=True)
        await scene.wait_phase("slow", "Suspended")
        await scene.patch("slow", suspend=False)
        after = await scene.wait_phase("slow", "Running")
        assert after["generation"] > before["generation"]
        assert "slow-w0-0" in await scene.pods("slow")
    finally:
        await hold(scene, "slow-w0-0", [])


async def hold(scene: Scene, pod: str, finalizers: list[str]) -> None:
    """Keep a pod in place though it is deleted, or let it go."""
    await scene.kube.merge(PODS, scene.namespace, pod, {"metadata": {"finalizers": finalizers}})


async def test_c_028_deleted_and_made_again_at_once(scene: Scene) -> None:
    await scene.nodes(a100=1)
    for _ in range(3):
        made = await scene.create(scene.job("again", IDLE, pools={"a100": 1}))
        uid = made["metadata"]["uid"]
        await scene.wait("again", lambda s: s.get("replicas") == 1, "a worker of the new job")
        owners = [
            pod["metadata"]["ownerReferences"][0]["uid"]
            for pod in (await scene.pods("again")).values()
            if "deletionTimestamp" not in pod["metadata"]
        ]
        assert owners == [uid]
        await scene.kube.delete(REXJOBS, scene.namespace, "again")


async def test_c_021_and_c_034_deleting_in_the_middle_is_a_normal_end(scene: Scene) -> None:
    await scene.nodes(a100=2)
    lines = len(scene.operator.lines())
    await scene.create(scene.job("robbed", IDLE))
    await scene.wait("robbed", lambda s: s.get("replicas") == 2, "two workers")
    await scene.kube.delete(SERVICES, scene.namespace, "rex-robbed")
    await scene.patch("robbed", workers={"min": 1, "max": 1})
    await scene.wait("robbed", lambda s: s["replicas"] == 1, "one worker")
    await scene.kube.delete(REXJOBS, scene.namespace, "robbed")
    for _ in range(10):
        await scene.create(scene.job("brief", IDLE))
        await asyncio.sleep(0)
        await scene.kube.delete(REXJOBS, scene.namespace, "brief")

    async def nothing_left() -> bool:
        return not await scene.children()

    await scene.until(nothing_left, "nothing is left")
    assert [line for line in scene.operator.lines()[lines:] if line.get("level") in ("error", "critical")] == []


async def test_the_jobs_time_to_live_removes_it(scene: Scene) -> None:
    await scene.nodes(a100=1)
    await scene.create(scene.job("brief", ["true"], pools={"a100": 1}, ttlSecondsAfterFinished=1))

    async def gone() -> bool:
        return await scene.get("brief") == {}

    await scene.until(gone, "the job is gone")


async def test_c_020_a_namespace_goes_while_no_operator_runs(scene: Scene) -> None:
    await scene.nodes(a100=1)
    await scene.create(scene.job("left", IDLE, pools={"a100": 1}))
    await scene.wait("left", lambda s: s.get("replicas") == 1, "a worker")
    scene.operator.kill()
    try:
        await scene.kube.delete(REXJOBS, scene.namespace, "left")

        async def nothing_left() -> bool:
            return not await scene.children() and await scene.get("left") == {}

        await scene.until(nothing_left, "all is gone without an operator")
    finally:
        scene.operator.start()
        await scene.operator.leads()


async def test_an_unknown_field_is_refused_by_the_server(scene: Scene) -> None:
    job = scene.job("typo")
    job["spec"]["worker"] = {"min": 1}
    with pytest.raises(KubeError, match="unknown field"):
        await scene.kube.request("POST", REXJOBS.path(scene.namespace), query={"fieldValidation": "Strict"}, body=job)
