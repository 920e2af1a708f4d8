"""Ctrl-C saves and stops, the same command goes on, and nothing is ever left running."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.local.scene import Command, alive, pids, read_lines, rex, until, write_manifest

pytestmark = pytest.mark.component


async def test_the_same_command_goes_on_where_ctrl_c_stopped_it(tmp_path: Path) -> None:
    write_manifest(tmp_path, env={"EPOCHS": "10", "SAMPLES": "1024", "REX_EMULATE_SCALE": "1"})
    command = ("run", "-f", "job.yaml")
    first = await Command(*command, cwd=tmp_path).start()
    run_dir = tmp_path / "runs" / "tiny-1"
    await until(lambda: any(line["event"] == "checkpoint" for line in read_lines(run_dir, "event")))
    first.process.send_signal(signal.SIGINT)
    assert await first.code() == 130, first.output
    assert "goes on from the checkpoint at step" in first.output
    stopped_at = read_lines(run_dir, "step")[-1]["step"]
    saved = read_lines(run_dir, "end")[-1]["summary"]["checkpoint_step"]
    assert saved >= stopped_at, "everything that was done is kept"
    assert not any(alive(pid) for pid in pids(run_dir))

    code, output = await rex(*command, cwd=tmp_path)
    assert code == 0, output
    assert "going on with the interrupted run" in output
    assert not (tmp_path / "runs" / "tiny-2").exists()
    steps = [line for line in read_lines(run_dir, "step") if line["step"] > stopped_at]
    again = [line["step"] for line in read_lines(run_dir, "step")][len(read_lines(run_dir, "step")) - len(steps) :]
    assert min(again) > saved, "no step was made twice"
    generations = [line["generation"] for line in read_lines(run_dir, "membership")]
    versions = [line["version"] for line in read_lines(run_dir, "plan")]
    assert generations == sorted(set(generations))
    assert versions == sorted(set(versions))
    assert read_lines(run_dir, "metrics")[-1]["samples"] == 10 * 1024, "exactly once, over the interrupt"
    assert not any(alive(pid) for pid in pids(run_dir))

    code, output = await rex("run", "-f", "job.yaml", "--run-dir", str(run_dir), cwd=tmp_path)
    assert code == 2
    assert "has ended" in output


async def test_a_second_ctrl_c_stops_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(900)"
    )
    write_manifest(tmp_path, command=["python", "-c", stubborn])
    command = await Command("run", "-f", "job.yaml", "--run-dir", "run", cwd=tmp_path).start()
    await command.until("started")
    logs = [tmp_path / "run" / "logs" / f"w{number}.log" for number in range(3)]
    await until(lambda: all(log.exists() and "up" in log.read_text() for log in logs))  # deaf from here on
    command.process.send_signal(signal.SIGINT)
    await command.until("saving a checkpoint and stopping")
    command.process.send_signal(signal.SIGINT)
    assert await command.code() == 130, command.output
    assert len(pids(tmp_path / "run")) == 3
    assert not any(alive(pid) for pid in pids(tmp_path / "run"))


async def test_a_run_that_is_killed_takes_its_workers_along_and_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    # All or none: a group that began with two, because the third is slow to start, would be formed a second time.
    all_three = {"min": 3, "max": 3}
    write_manifest(tmp_path, env={"EPOCHS": "6", "SAMPLES": "1024", "REX_EMULATE_SCALE": "1"}, workers=all_three)
    run_dir = tmp_path / "run"
    first = await Command("run", "-f", "job.yaml", "--run-dir", "run", cwd=tmp_path).start()
    await until(lambda: any(line["event"] == "checkpoint" for line in read_lines(run_dir, "event")))
    first.process.kill()
    await first.code()
    await until(lambda: not any(alive(pid) for pid in pids(run_dir)))

    code, output = await rex("run", "-f", "job.yaml", "--run-dir", "run", cwd=tmp_path)
    assert code == 0, output
    assert read_lines(run_dir, "metrics")[-1]["samples"] == 6 * 1024, "each sample once per epoch that counts"
    generations = [line["generation"] for line in read_lines(run_dir, "membership")]
    assert generations == sorted(set(generations))
    assert len(generations) == 2
