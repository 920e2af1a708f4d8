"""Real runs for tests: manifests, a run in this process that a test can interfere with, and ``rex`` as a command."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from rex_operator.jobs import JobView
from rex_operator.local.run import LocalRun, Outcome
from rex_operator.local.start import prepare
from rex_operator.planning import DecisionRecord

ROOT = Path(__file__).resolve().parents[2]
TINY = str(Path(__file__).with_name("train_tiny.py"))


def write_manifest(
    folder: Path, *, command: list[str] | None = None, env: dict[str, str] | None = None, **spec: Any
) -> Path:
    """Write a job of three small workers; ``spec`` replaces fields of it."""
    variables = {"REX_EMULATE_SCALE": "0.2"} | (env or {})
    trainer: dict[str, Any] = {
        "name": "trainer",
        "image": "unused",
        "command": command or ["python", TINY],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
    }
    whole: dict[str, Any] = {
        "workers": {"min": 2, "max": 3},
        "pools": [{"name": "a100", "maxWorkers": 2}, {"name": "t4", "maxWorkers": 1}],
        "batch": {"initial": 32, "min": 8, "max": 256},
        "planner": {"policy": "even"},
        "checkpoint": {"path": "tiny", "everySteps": 20},
        "template": {"spec": {"containers": [trainer]}},
    } | spec
    manifest = {"apiVersion": "rex.dev/v1alpha1", "kind": "RexJob", "metadata": {"name": "tiny"}, "spec": whole}
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(manifest))
    return file


class Watcher:
    """An observer that keeps all it is told and lets the test act at a moment of its choice."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.decisions: list[DecisionRecord] = []
        self.view: JobView | None = None
        self.steps: list[Callable[[JobView], bool]] = []
        """Called with each view in turn; the next one's turn comes when one returns True."""

    def event(self, event: str, message: str) -> None:
        self.events.append((event, message))

    def decided(self, record: DecisionRecord) -> None:
        self.decisions.append(record)

    def progress(self, view: JobView, seconds: float) -> None:
        self.view = view
        if self.steps and self.steps[0](view):
            del self.steps[0]


def make_run(manifest: Path, run_dir: Path, watcher: Watcher, **options: Any) -> LocalRun:
    prepared = prepare(manifest, run_dir)
    return LocalRun(
        prepared.job, prepared.program, prepared.directory, prepared.state, watcher, emulate=True, **options
    )


async def play(run: LocalRun) -> Outcome:
    """Run to the end and let go of the folder."""
    try:
        return await run.run()
    finally:
        run.directory.close()


async def until(met: Callable[[], bool]) -> None:
    """Wait until something holds that another process brings about; the test's own time limit is the bound."""
    while not met():
        await asyncio.sleep(0.02)


def read_lines(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    """Lines of the record of one kind."""
    file = run_dir / "record.jsonl"
    if not file.exists():
        return []
    # The last line may be half-written. One that a kill has torn is followed by whole ones.
    lines = [json.loads(line) for line in file.read_text().split("\n")[:-1] if line.endswith("}")]
    return [line for line in lines if line["kind"] == kind]


def pids(run_dir: Path) -> list[int]:
    """Processes of all workers of the run, over all parts."""
    return [line["pid"] for line in read_lines(run_dir, "event") if line["event"] == "worker-started"]


def alive(pid: int) -> bool:
    """Whether the process still executes; one that only waits to be collected by its new parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Command:
    """``rex`` as users start it."""

    def __init__(self, *words: str, cwd: Path) -> None:
        self._words, self._cwd = words, cwd
        self.output = ""

    async def start(self) -> Command:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "rex_operator.cli",
            *self._words,
            cwd=self._cwd,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        return self

    async def until(self, words: str) -> None:
        """Read until a line has these words. Fails when the command ends before."""
        assert self.process.stdout is not None
        while line := (await self.process.stdout.readline()).decode():
            self.output += line
            if words in line:
                return
        raise AssertionError(f"{words!r} never appeared in:\n{self.output}")

    async def code(self) -> int:
        """Wait for the end and return the exit code."""
        rest, _ = await self.process.communicate()
        self.output += rest.decode()
        assert self.process.returncode is not None
        return self.process.returncode


async def rex(*words: str, cwd: Path) -> tuple[int, str]:
    """Run a command to its end; return exit code and output."""
    command = await Command(*words, cwd=cwd).start()
    code = await command.code()
    return code, command.output
