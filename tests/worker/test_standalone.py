"""Processes that torchrun, or anything like it, has started: they bring their own planner along."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ports import quiet_port
from tests.worker.ledger import Ledgers
from tests.worker.operator_double import ROOT, Nursery

pytestmark = pytest.mark.component

SCRIPT = Path(__file__).with_name("gang_script.py")
EMULATED = {"REX_EMULATE": "1", "REX_EMULATE_SCALE": "2"}


class Run:
    """What a gang leaves behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledgers = Ledgers(folder)
        self.started: list[tuple[int, Path]] = []
        """Processes that were started by hand, and the files that tell of their ends."""

    def environment(self, **variables: str) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("REX_")}
        return {
            **clean,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "LEDGERS": str(self.folder),
            "ENOUGH": str(self.folder / "enough"),
            "REX_RUN_DIR": str(self.folder / "run"),
            **variables,
        }

    def records(self, kind: str) -> list[dict[str, Any]]:
        file = self.folder / "run" / "record.jsonl"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []  # the last may be half-written
        return [entry for entry in map(json.loads, lines) if entry["kind"] == kind]

    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.folder / "run" / "summary.json").read_text())
        return summary

    def nobody_is_left(self) -> bool:
        """Whether no process, planners included, still has this run's folder in its environment."""
        return not any(
            str(self.folder).encode() in _read(process / "environ") for process in Path("/proc").glob("[0-9]*")
        )


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    for pid, ended in made.started:
        if not ended.exists():  # a test that failed; the planner ends with its rank 0
            os.kill(pid, signal.SIGKILL)


async def until(what: str, condition: Any, *logs: Path, seconds: float = 150) -> None:
    try:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.05)
    except TimeoutError:
        told = "\n".join(log.read_text()[-6000:] for log in logs if log.exists())
        raise AssertionError(f"waited in vain for: {what}\n{told}") from None


@asynccontextmanager
async def torchrun(run: Run, ranks: int, *options: str, **variables: str) -> AsyncIterator[tuple[Any, Path]]:
    log = run.folder / "torchrun.log"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *options, str(SCRIPT)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *launcher], cwd=ROOT, env=run.environment(**variables), stdout=out, stderr=out
        )
    try:
        yield process, log
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


async def test_torchruns_workers_are_planned_for_while_they_train(run: Run) -> None:
    kinds = "a100,v100,t4"
    async with torchrun(run, 3, **EMULATED, REX_DEVICE=kinds, SAMPLES="503", EPOCHS="10000") as (launcher, log):
        moved = lambda: any(step["version"] >= 2 for step in run.records("step"))  # noqa: E731
        await until("a step under a second plan", moved, log)
        run.ledgers.enough()
        await until("torchrun's end", lambda: launcher.poll() is not None, log)
    assert launcher.returncode == 0, log.read_text()[-6000:]
    await until("the end of all processes", run.nobody_is_left, log)
    run.ledgers.check_exactly_once(503)
    run.ledgers.check_same_end("w0-0", "w1-0", "w2-0")
    first, second = run.records("plan")[:2]
    assert first["global_batch"] == 3 * 50, "the script's own batch, on each worker"
    assert second["local_batches"]["w0"] > second["local_batches"]["w2"], "the fast device has more"
    summary = run.summary()
    assert summary["outcome"] == "succeeded" and summary["devices"] == {"w0": "a100", "w1": "v100", "w2": "t4"}


async def test_who_is_left_when_torchrun_ends_an_attempt_saves_what_the_next_goes_on_from(run: Run) -> None:
    kept = {"REX_CHECKPOINT_DIR": str(run.folder / "checkpoints"), "REX_CHECKPOINT_EVERY": "1000"}
    variables = {**EMULATED, **kept, "REX_DEVICE": "t4", "SAMPLES": "503", "EPOCHS": "10000", "DIE_AT": "45"}
    async with torchrun(run, 2, "--max-restarts", "1", **variables) as (launcher, log):
        again = lambda: any(entry["step"] > 50 for entry in run.ledgers.kind("applied", "*-1"))  # noqa: E731
        await until("steps of the second attempt", again, log)
        run.ledgers.enough()
        await until("torchrun's end", lambda: launcher.poll() is not None, log)
    assert launcher.returncode == 0, log.read_text()[-6000:]
    first = min(entry["step"] for entry in run.ledgers.kind("applied", "*-1"))
    assert first > 45, "from what the other one saved when the worker had died after step 45"
    run.ledgers.check_same_end("w0-1", "w1-1")
    await until("the end of all processes", run.nobody_is_left, log)
    assert run.summary()["outcome"] == "succeeded"


def start(run: Run, nursery: Nursery, address: str, **variables: str) -> tuple[list[int], list[Path], list[Path]]:
    """Start two ranks by hand, each as if it had a host of its own at ``address``; returns pids, logs, exit files."""
    meeting = {"MASTER_ADDR": address, "MASTER_PORT": str(quiet_port(address)), "WORLD_SIZE": "2", "EPOCHS": "3"}
    pids, logs, ends = [], [], []
    for rank in "01":
        logs.append(run.folder / f"rank-{rank}.log")
        ends.append(run.folder / f"rank-{rank}.exit")
        environment = run.environment(**{**meeting, **variables, "RANK": rank})
        pids.append(nursery.start(SCRIPT, environment, logs[-1], ends[-1]))
        run.started.append((pids[-1], ends[-1]))
    return pids, logs, ends


async def gang(run: Run, nursery: Nursery, address: str, **variables: str) -> list[str]:
    """Run two ranks, and their planner, to their end; returns what they left, each opening with its exit code."""
    _, logs, ends = start(run, nursery, address, **variables)
    await until("the end of the ranks", lambda: all(end.exists() for end in ends), *logs)
    await until("the end of the planner, which writes the summary", run.nobody_is_left, *logs)
    codes = [end.read_text() for end in ends]
    texts = [log.read_text() for log in logs]
    return [f"exit {code}\n{text}" for code, text in zip(codes, texts, strict=True)]


async def test_hosts_talk_to_the_planner_over_tls(run: Run, nursery: Nursery) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        address = probe.getsockname()[0]
    logs = await gang(run, nursery, address)
    assert all(log.startswith("exit 0") for log in logs), logs
    run.ledgers.check_exactly_once(1003)
    (membership,) = run.records("membership")
    assert {member["address"] for member in membership["members"]} == {address}
    assert run.summary()["outcome"] == "succeeded"


async def test_without_the_operators_packages_shares_stay_even_and_that_is_said(run: Run, nursery: Nursery) -> None:
    (run.folder / "yaml.py").write_text("raise ModuleNotFoundError('as if not installed', name='yaml')\n")
    logs = await gang(run, nursery, "127.0.0.1", PYTHONPATH=f"{run.folder}{os.pathsep}{ROOT}")
    assert all(log.startswith("exit 0") for log in logs), logs
    assert all("batches are not planned: yaml is not installed" in log for log in logs), logs
    run.ledgers.check_exactly_once(1003)
    run.ledgers.check_same_end("w0-0", "w1-0")


async def test_a_bad_job_file_is_refused_on_every_rank(run: Run, nursery: Nursery) -> None:
    job = run.folder / "job.yaml"
    job.write_text("kind: Pod\n")
    logs = await gang(run, nursery, "127.0.0.1", REX_JOB_FILE=str(job))
    assert all(log.startswith("exit 1") and "not a valid RexJob" in log for log in logs), logs


async def test_the_job_file_says_how_to_plan(run: Run, nursery: Nursery) -> None:
    job = run.folder / "job.yaml"
    job.write_text(
        "apiVersion: rex.dev/v1alpha1\nkind: RexJob\nmetadata: {name: two}\nspec:\n"
        "  workers: {min: 1, max: 4}\n  pools: [{name: cpu, maxWorkers: 4}]\n"
        "  batch: {initial: 31, min: 31, max: 31}\n  planner: {policy: even}\n"
        "  template: {spec: {containers: [{name: trainer}]}}\n"
    )
    logs = await gang(run, nursery, "127.0.0.1", REX_JOB_FILE=str(job))
    assert all(log.startswith("exit 0") for log in logs), logs
    run.ledgers.check_exactly_once(1003)
    assert {plan["global_batch"] for plan in run.records("plan")} == {31}
    assert run.summary()["job"] == "local/two"


async def test_a_worker_that_is_told_to_go_leaves_the_others_training_rank_0_too(run: Run, nursery: Nursery) -> None:
    pids, logs, ends = start(run, nursery, "127.0.0.1", **EMULATED, REX_DEVICE="t4", SAMPLES="503", EPOCHS="10000")

    def steps(name: str) -> int:
        return max((entry["step"] for entry in run.ledgers.kind("applied", name)), default=0)

    await until("steps", lambda: steps("w1-0") >= 10, *logs)
    os.kill(pids[0], signal.SIGTERM)
    await until("rank 0's end", ends[0].exists, *logs)
    reached = steps("w1-0")
    await until("steps of rank 1 alone", lambda: steps("w1-0") >= reached + 10, *logs)
    run.ledgers.enough()
    await until("rank 1's end", ends[1].exists, *logs)
    assert [end.read_text() for end in ends] == ["0", "0"]
    run.ledgers.check_exactly_once(503)
    await until("the end of the planner", run.nobody_is_left, *logs)
    assert run.summary()["outcome"] == "succeeded"
