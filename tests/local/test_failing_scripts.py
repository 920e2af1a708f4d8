"""Scripts that cannot work: the job fails with words that help, and nothing is left running."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from rex_operator.local.run import Outcome
from tests.local.scene import Watcher, alive, make_run, pids, play, read_lines, until, write_manifest

pytestmark = pytest.mark.component


async def run(folder: Path, **manifest: Any) -> tuple[Outcome, Watcher, dict[str, Any]]:
    watcher = Watcher()
    local = make_run(write_manifest(folder, **manifest), folder / "run", watcher)
    outcome = await play(local)
    assert not any(alive(pid) for pid in pids(folder / "run"))
    return outcome, watcher, local.summary


async def test_a_script_that_raises_is_told_with_its_error(tmp_path: Path) -> None:
    outcome, _, summary = await run(tmp_path, env={"RAISE": "no such column"}, failure={"maxRestarts": 0})
    assert outcome.result == "failed"
    assert outcome.reason == "RestartsUsedUp"
    assert "no such column" in outcome.message
    assert "train_tiny.py" in outcome.message, "the traceback of the log is shown"
    assert summary["outcome"] == "failed"
    (end,) = read_lines(tmp_path / "run", "end")
    assert end["success"] is False


async def test_a_script_that_ends_without_ever_calling_rex(tmp_path: Path) -> None:
    outcome, _, _ = await run(tmp_path, command=["python", "-c", "print('all done')"])
    assert outcome.reason == "NeverCalledRex"
    assert "without ever calling rex.init()" in outcome.message
    assert "all done" in outcome.message


async def test_a_script_that_runs_on_without_ever_calling_rex(tmp_path: Path) -> None:
    outcome, _, _ = await run(
        tmp_path,
        command=["python", "-c", "print('busy', flush=True); import time; time.sleep(900)"],
        pendingDeadlineSeconds=5,  # by then it has printed, on a busy machine too
    )
    assert outcome.reason == "PendingDeadlineExceeded"
    assert "never called rex.init()" in outcome.message
    assert "busy" in outcome.message


async def test_c_094_the_budget_is_used_up_exactly(tmp_path: Path) -> None:
    outcome, watcher, summary = await run(
        tmp_path,
        command=["python", "-c", "import sys; sys.exit(3)"],
        failure={"maxRestarts": 2},
        workers={"min": 1, "max": 1},
    )
    assert outcome.reason == "RestartsUsedUp"
    assert summary["restarts"] == {"charged": 2, "not_charged": 0}
    assert len(pids(tmp_path / "run")) == 3
    assert sum(event == "worker-ended" for event, _ in watcher.events) == 2


async def test_a_rule_ends_the_job_at_the_first_exit(tmp_path: Path) -> None:
    outcome, _, summary = await run(
        tmp_path,
        command=["python", "-c", "import sys; sys.exit(2)"],
        failure={"maxRestarts": 9, "rules": [{"exitCodes": [2], "action": "Fail"}]},
        workers={"min": 1, "max": 1},
    )
    assert outcome.reason == "FailureRule"
    assert summary["restarts"] == {"charged": 0, "not_charged": 0}


async def test_c_204_secrets_are_in_no_file_of_the_run_and_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    outcome, watcher, _ = await run(
        tmp_path,
        command=["python", "-c", "import sys; sys.exit(2)"],
        env={"AWS_SECRET_ACCESS_KEY": "CANARY"},
        failure={"maxRestarts": 1},
    )
    said = caplog.text + outcome.message + str(watcher.events)
    written = b"".join(file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file())
    assert "CANARY" not in said
    assert b"CANARY" not in written
    assert b"oken" not in written, "tokens are kept elsewhere, and only as long as they are valid"


async def test_the_active_deadline_ends_the_job(tmp_path: Path) -> None:
    outcome, _, _ = await run(
        tmp_path, command=["python", "-c", "import time; time.sleep(900)"], activeDeadlineSeconds=1
    )
    assert outcome.reason == "DeadlineExceeded"


async def test_what_a_worker_started_ends_with_it(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(900)']);"
        "print('child', p.pid, flush=True)"
    )
    await run(tmp_path, command=["python", "-c", script], workers={"min": 1, "max": 1})
    text = (tmp_path / "run" / "logs" / "w0.log").read_text()
    await until(lambda: not alive(int(text.split()[1])))
