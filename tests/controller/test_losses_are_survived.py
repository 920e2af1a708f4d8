"""Workers and operators die; the others go on, and nothing that was decided is lost."""

from __future__ import annotations

import pytest

from tests.controller.scene import Scene

pytestmark = pytest.mark.component

LONG = 100_000
"""Epochs: longer than any test."""


async def test_a_killed_worker_is_replaced_charged_and_the_other_process_lives_on(scene: Scene) -> None:
    await scene.nodes(a100=2)
    await scene.create(scene.job("long", epochs=LONG))
    before = await scene.wait_whole("long", 2, "both train")
    survivor = scene.kubelet.process("long-w0-0").pid
    scene.kubelet.kill("long-w1-0")
    healed = await scene.wait_whole("long", 2, "the worker is replaced", beyond=before["generation"])
    assert healed["restarts"]["charged"] == 1
    assert scene.kubelet.process("long-w0-0").pid == survivor
    assert scene.kubelet.process("long-w0-0").returncode is None
    assert [(f["pod"], f["exitCode"], f["charged"]) for f in healed["failures"]] == [("long-w1-0", 137, True)]
    assert "long-w1-1" in await scene.pods("long")


async def test_c_033_and_c_010_the_operator_is_killed_and_pods_go_meanwhile(scene: Scene) -> None:
    await scene.nodes(a100=2)
    await scene.create(scene.job("steady", epochs=LONG))
    before = await scene.wait_whole("steady", 2, "both train")
    survivor = scene.kubelet.process("steady-w0-0").pid
    scene.operator.kill()
    doomed = scene.kubelet.process("steady-w1-0")  # its replacement may have its name again
    await scene.delete_pod("steady-w1-0")
    await scene.until(lambda: doomed.returncode is not None, "the worker has gone")
    scene.operator.start()
    await scene.operator.leads()
    after = await scene.wait_whole("steady", 2, "they train again", beyond=before["generation"])
    assert after["plan"]["version"] > before["plan"]["version"]
    assert scene.kubelet.process("steady-w0-0").pid == survivor
    assert after["restarts"]["charged"] == 0


async def test_c_027_a_finished_job_stays_finished_over_a_restart_of_the_operator(scene: Scene) -> None:
    await scene.nodes(a100=1)
    await scene.create(scene.job("done", pools={"a100": 1}))
    done = await scene.wait_phase("done", "Succeeded")
    for pod in await scene.pods("done"):
        await scene.delete_pod(pod)

    async def all_gone() -> bool:
        return await scene.pods("done") == {}

    await scene.until(all_gone, "its pods are gone")
    scene.operator.kill()
    scene.operator.start()
    await scene.operator.leads()
    other = scene.job("other", ["sleep", "1000"], pools={"a100": 1})
    await scene.create(other)
    await scene.wait("other", lambda s: s.get("workers", {}).get("desired") == 1, "the operator is at work again")
    assert await scene.pods("done") == {}
    assert (await scene.status("done"))["completionTime"] == done["completionTime"]


async def test_stopping_the_operator_gives_the_lease_up_and_exits_cleanly(scene: Scene) -> None:
    assert scene.operator.stop() == 0
    scene.operator.start()
    await scene.operator.leads()
