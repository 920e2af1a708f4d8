"""A worker that dies in the run is replaced, and nobody else is disturbed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rex_operator.jobs import JobView
from tests.local.scene import Watcher, alive, make_run, pids, play, read_lines, write_manifest

pytestmark = pytest.mark.component


@pytest.mark.parametrize("victim", ["w0", "w1"])
async def test_a_killed_worker_is_replaced_and_the_others_keep_their_processes(tmp_path: Path, victim: str) -> None:
    watcher = Watcher()
    run = make_run(write_manifest(tmp_path, env={"EPOCHS": "5000"}), tmp_path / "run", watcher)
    before: dict[str, int] = {}
    after: dict[str, int] = {}

    def kill(view: JobView) -> bool:
        if view.step < 20:
            return False
        before.update(run.pids())
        os.kill(before[victim], signal.SIGKILL)
        return True

    def whole_again(view: JobView) -> bool:
        whole = len(view.workers) == 3 and all(row.state == "running" for row in view.workers) and not view.unacked
        if view.generation < 2 or not whole or run.pids()[victim] == before[victim]:
            return False
        after.update(run.pids())
        run.interrupt("seen enough")
        return True

    watcher.steps = [kill, whole_again]
    outcome = await play(run)
    assert outcome.result == "interrupted", outcome.message
    assert not watcher.steps, "the replacement trained with the others"
    others = {"w0", "w1", "w2"} - {victim}
    assert {name: after[name] for name in others} == {name: before[name] for name in others}
    assert run.summary["restarts"] == {"charged": 1, "not_charged": 0}
    log = (tmp_path / "run" / "logs" / "w2.log").read_text()
    assert log.count("began at") == 1
    assert not any(alive(pid) for pid in pids(tmp_path / "run"))
    steps = [line["step"] for line in read_lines(tmp_path / "run", "step")]
    assert steps == sorted(steps), "no step was lost"
