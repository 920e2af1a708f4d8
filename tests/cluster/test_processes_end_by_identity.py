"""A later run ends exactly what an earlier one started: pid and start time must both fit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import processes
from tests.cluster.shell import ClusterError

pytestmark = pytest.mark.component
_FOREVER = [sys.executable, "-c", "import signal; signal.pause()"]


def test_recorded_process_is_found_and_ended(tmp_path: Path) -> None:
    started = processes.spawn("part", _FOREVER, tmp_path)
    (again,) = processes.recorded(tmp_path)
    assert (again.name, again.pid, again.started) == ("part", started.pid, started.started)
    assert again.alive()
    processes.stop([again], grace=5)
    assert not again.alive()


def test_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    process = processes.spawn("deaf", [sys.executable, "-c", deaf], tmp_path)
    processes.await_healthy(process, lambda: None if process.log.read_text() else "not deaf yet", 30)
    processes.stop([process], grace=0.2)
    assert not process.alive()


def test_stranger_with_the_same_pid_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(_FOREVER) as stranger:
        (tmp_path / "part.pid").write_text(json.dumps({"pid": stranger.pid, "started": 1}))
        (dead,) = processes.recorded(tmp_path)
        assert not dead.alive()
        processes.stop([dead], grace=0)
        assert stranger.poll() is None
        stranger.kill()


def test_torn_pid_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "torn.pid").write_text('{"pid": 1')
    assert processes.recorded(tmp_path) == []


def test_early_end_shows_the_last_words(tmp_path: Path) -> None:
    # On a busy machine it may have ended before ``spawn`` looks at it for the first time: that is told alike.
    with pytest.raises(ClusterError, match=r"(?s)mayfly ended.*no such bridge"):
        process = processes.spawn("mayfly", [sys.executable, "-c", "raise SystemExit('no such bridge')"], tmp_path)
        processes.await_healthy(process, lambda: "silent", 30)


def test_deadline_shows_the_reason(tmp_path: Path) -> None:
    process = processes.spawn("slow", _FOREVER, tmp_path)
    try:
        with pytest.raises(ClusterError, match="slow is not healthy after 0 s: port closed"):
            processes.await_healthy(process, lambda: "port closed", 0)
    finally:
        processes.stop([process], grace=0)


def test_descendants_are_found(tmp_path: Path) -> None:
    nested = f"import subprocess; print(subprocess.Popen({_FOREVER!r}).pid, flush=True); import signal; signal.pause()"
    parent = processes.spawn("parent", [sys.executable, "-c", nested], tmp_path)
    processes.await_healthy(parent, lambda: None if parent.log.read_text().strip() else "no child yet", 30)
    (child,) = processes.descendants([parent])
    assert child.pid == int(parent.log.read_text())
    processes.stop([parent], grace=0)
    child.signal(signal.SIGKILL)
