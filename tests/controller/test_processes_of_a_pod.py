"""Real pods with two devices each, on a real API server: a process dies, the operator dies, a whole pod dies."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from rex_operator.controller.kube import Object
from tests.controller.scene import Scene

pytestmark = pytest.mark.component

LONG = 100_000
"""Epochs: longer than any test."""
LAUNCH = ["python", "-m", "rex_worker.launch", "--", sys.executable, "tests/controller/train_tiny.py"]


def wide_job(scene: Scene, name: str, workers: int, epochs: int) -> Object:
    """A job of pods with two devices."""
    job = scene.job(name, LAUNCH, pools={"a100": workers}, epochs=epochs)
    job["spec"]["pools"][0] |= {"devicesPerPod": 2, "resources": {"limits": {"nvidia.com/gpu": 2}}}
    return job


def processes(scene: Scene, pod: str) -> dict[str, int]:
    """The workers' processes of a pod: children of its launcher, by worker id."""
    launcher = scene.kubelet.process(pod).pid
    found = {}
    for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        pairs = dict(entry.partition("=")[::2] for entry in Path(f"/proc/{pid}/environ").read_text().split("\0"))
        if "REX_WORKER_ID" in pairs and pairs.get("REX_DEVICES_PER_POD") is None:
            found[pairs["REX_WORKER_ID"]] = int(pid)
    return found


async def test_a_process_an_operator_and_a_pod_are_lost_and_the_others_train_on(scene: Scene) -> None:
    await scene.nodes(a100=4)
    await scene.create(wide_job(scene, "wide", 4, LONG))
    first = await scene.wait_whole("wide", 4, "all four train")
    assert first["poolsSummary"] == "a100:4"
    await scene.wait("wide", lambda s: s.get("progress", {}).get("step", 0) > 5, "they train")
    assert set(await scene.pods("wide")) == {"wide-w0-0", "wide-w1-0"}
    near, far = processes(scene, "wide-w0-0"), processes(scene, "wide-w1-0")
    assert set(near) == {"w0-0", "w0-1"} and set(far) == {"w1-0", "w1-1"}

    os.kill(near["w0-1"], signal.SIGKILL)
    healed = await scene.wait_whole("wide", 4, "the process is replaced", beyond=first["generation"])
    assert healed["restarts"]["charged"] == 1
    assert [(f["worker"], f["pod"], f["exitCode"]) for f in healed["failures"]] == [("w0-1", "wide-w0-0", 137)]
    now = processes(scene, "wide-w0-0")
    assert now["w0-0"] == near["w0-0"] and now["w0-1"] != near["w0-1"]
    assert processes(scene, "wide-w1-0") == far
    assert set(await scene.pods("wide")) == {"wide-w0-0", "wide-w1-0"}

    async def noted() -> bool:
        pods = await scene.pods("wide")
        annotations: dict[str, str] = pods["wide-w0-0"]["metadata"].get("annotations", {})
        return annotations.get("rex.dev/counted-exits") == "0,1"

    await scene.until(noted, "the pod tells which ends the status has counted")

    assert scene.operator.stop() == 0
    scene.operator.start()
    await scene.operator.leads()
    scene.kubelet.kill("wide-w1-0")
    again = await scene.wait_whole("wide", 4, "the pod is replaced", beyond=healed["generation"])
    assert again["restarts"]["charged"] == 2
    assert [(f["worker"], f["exitCode"]) for f in again["failures"]] == [("w0-1", 137), ("w1", 137)]
    assert processes(scene, "wide-w0-0") == now, "the first pod's processes live on"


async def test_a_single_pod_trains_to_its_end(scene: Scene) -> None:
    await scene.nodes(a100=2)
    await scene.create(wide_job(scene, "whole", 2, 3))
    done = await scene.wait_phase("whole", "Succeeded")
    assert done["restarts"] == {"charged": 0, "uncharged": 0}
    assert set(await scene.pods("whole")) == {"whole-w0-0"}
