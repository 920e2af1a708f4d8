"""The whole way on a real API server with real worker processes: applied, trained, succeeded, deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from rex_operator.controller.kube import REXJOBS
from tests.controller.scene import Scene

pytestmark = pytest.mark.component


LONG = 100_000
"""Epochs: longer than any test."""


async def test_apply_train_succeed_delete(scene: Scene, tmp_path: Path) -> None:
    await scene.nodes(a100=1, t4=1)
    enough = tmp_path / "enough"
    job = scene.job("tiny", pools={"a100": 1, "t4": 1}, epochs=LONG)
    job["spec"]["template"]["spec"]["containers"][0]["env"].append({"name": "ENOUGH", "value": str(enough)})
    await scene.create(job)
    running = await scene.wait_phase("tiny", "Running")
    assert running["workers"]["summary"] == "2/2"
    assert running["poolsSummary"] == "a100:1 t4:1"
    wanted = {
        "pods/tiny-w0-0",
        "pods/tiny-w1-0",
        "services/rex-tiny",
        "configmaps/rex-tiny-ca",
        "configmaps/rex-tiny-state",
        "poddisruptionbudgets/rex-tiny",
        "networkpolicies/rex-tiny",
    }

    async def all_made() -> bool:
        return set(await scene.children()) == wanted

    await scene.until(all_made, "all children, the saved state too, which is written beside the status")
    enough.touch()
    done = await scene.wait_phase("tiny", "Succeeded")
    assert done["plan"]["version"] >= 1 and done["generation"] >= 1
    assert done["progress"]["percent"] == 100
    assert done["restarts"] == {"charged": 0, "uncharged": 0}
    assert done["observedGeneration"] == 1
    for condition in done["conditions"]:
        assert {"type", "status", "reason", "lastTransitionTime", "observedGeneration"} <= condition.keys()
    await scene.wait_told("tiny", "WorkersCreated", "Starting", "Running", "Succeeded")
    await scene.kube.delete(REXJOBS, scene.namespace, "tiny")

    async def nothing_left() -> bool:
        return not await scene.children()

    await scene.until(nothing_left, "deleting leaves nothing")


async def test_c_023_and_c_204_status_is_whole_and_nothing_secret_is_told(scene: Scene) -> None:
    await scene.nodes(a100=1)
    job = scene.job("secretive", pools={"a100": 1})
    job["spec"]["template"]["spec"]["containers"][0]["env"].append(
        {"name": "AWS_SECRET_ACCESS_KEY", "value": "CANARY1"}
    )
    await scene.create(job)
    await scene.wait_phase("secretive", "Succeeded")
    await scene.wait_told("secretive", "Succeeded")
    said = scene.operator.log.read_text() + str(await scene.events("secretive")) + str(await scene.status("secretive"))
    assert "CANARY1" not in said
    assert "eyJhbGci" not in said, "a token is in the log"
    assert "inconsistencies" not in said
    metadata = (await scene.get("secretive"))["metadata"]
    assert "finalizers" not in metadata and "annotations" not in metadata
