"""A worker that is frozen, not dead, is noticed, given up and replaced; the others go on (C-080, C-138)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rex_operator.jobs import JobView
from tests.local.scene import Watcher, alive, make_run, pids, play, write_manifest

pytestmark = pytest.mark.component


async def test_c_080_a_frozen_worker_is_given_up_and_the_others_step_on(tmp_path: Path) -> None:
    watcher = Watcher()
    run = make_run(write_manifest(tmp_path, env={"EPOCHS": "5000"}), tmp_path / "run", watcher)
    before: dict[str, int] = {}
    frozen_at = 0
    named: list[bool] = []

    def freeze(view: JobView) -> bool:
        nonlocal frozen_at
        if view.step < 20:
            return False
        before.update(run.pids())
        os.kill(before["w1"], signal.SIGSTOP)
        frozen_at = view.step
        return True

    def whole_again(view: JobView) -> bool:
        if "w1" in view.stale:
            named.append(True)
        whole = len(view.workers) == 3 and all(row.state == "running" for row in view.workers) and not view.unacked
        if view.generation < 2 or not whole or run.pids()["w1"] == before["w1"] or view.step <= frozen_at + 20:
            return False
        run.interrupt("seen enough")
        return True

    watcher.steps = [freeze, whole_again]
    outcome = await play(run)
    assert outcome.result == "interrupted", outcome.message
    assert not watcher.steps
    assert named, "while it was silent it was named"
    assert not any(alive(pid) for pid in pids(tmp_path / "run"))
