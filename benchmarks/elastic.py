"""How long does an elastic event hold a training up, and what does it lose? One real run, and torchrun beside it.

All of ``rex run`` is at work: three worker processes (a100, a100, t4, emulated, at least two needed) with gloo, the
channel and the planner, at a fixed batch. Things are done to it one after another, by process id, each when the group
is whole again and steps: the planner's own first change of the split, a SIGTERM to one worker, the start of its
replacement, a SIGKILL of rank 0, of another worker, and a SIGSTOP of one, which is never woken. Each worker writes down
the end of each step on the machine's monotonic clock; memberships, plans and starts are taken from the run's record,
which is on the same clock. While the stopped worker's time runs out, and the machine is idle, a plain DDP script runs
under torchrun and saves every 20 steps, as is usual there; one of its three processes is killed in the middle between
two checkpoints. The script keeps the restarts' keys in the agent's store apart: new processes would else look for the
addresses of the old ones, and torchrun would need a second restart.

Figures; seconds are medians over the rounds (one with ``--quick``, else three):

- ``plan_steps``: steps that ended under the old plan after a new one was issued, the one in flight included; the
  largest of all changes within a generation. 2 where the fastest worker had already voted in the step in flight.
- ``leave_s``, ``kill_s``, ``kill_rank0_s``, ``stop_s``: from the signal until the last of the survivors has applied its
  first step in the group without the one that was signalled. After a SIGTERM the old group steps on meanwhile.
- ``leave_held_s``: the longest time between two applied steps of one survivor in that span; the rest goes on.
- ``join_s``: how long the running workers are held up by a newcomer: the longest time between two applied steps of one
  of them, from the membership's issue until all have stepped in the new group. A step's own time is part of it.
- ``join_total_s``: from the newcomer's start as a process until the first step that it has applied.
- ``step_s``: median time between two steps under the first split that the planner chose; what all these compare with.
- ``steps_lost_max``: steps that had to be done again, the largest number over events and survivors: those that a
  survivor computed and could not apply, and those whose effect was lost, so that it applied the same number twice.
- ``torchrun_kill_s``: from the SIGKILL until the last of the new processes has applied a step of a number that was not
  reached before; ``torchrun_steps_lost`` counts those that were done twice.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import yaml
from rich.console import Console
from rich.table import Table

from benchmarks._elastic_ledger import Ledger, Lines, Measured, Row
from benchmarks._elastic_scripts import DDP, REX
from benchmarks._silent import Silent
from rex_operator.local.run import LocalRun
from rex_operator.local.start import prepare

WORKERS, BATCH, SCALE = 3, 96, 2.5
"""The re-planned step takes about 40 ms."""
SAVE_EVERY = 20
STEADY_STEPS = 10
"""Steps of a whole group before the next event."""
PATIENCE_S = 60.0
"""The longest wait for what must happen next; beyond it the benchmark fails."""

T = TypeVar("T")


class Drill:
    """One run, what it tells, and what is done to it."""

    def __init__(self, folder: Path, console: Console) -> None:
        ledger = folder / "ledger"
        ledger.mkdir()
        (folder / "train.py").write_text(REX)
        manifest = folder / "elastic.yaml"
        manifest.write_text(yaml.safe_dump(_manifest(folder / "train.py", ledger)))
        self._prepared = prepare(manifest, folder / "run")
        job, program, directory = self._prepared.job, self._prepared.program, self._prepared.directory
        self._run = LocalRun(job, program, directory, None, Silent(), emulate=True)
        self._zero = time.monotonic() - self._run.seconds()
        self._record = Lines(folder / "run" / "record.jsonl")
        self._console = console
        self.ledger = Ledger(ledger)
        self.memberships: list[dict[str, Any]] = []
        self.plans: list[dict[str, Any]] = []
        self.started: dict[str, dict[str, Any]] = {}
        self.events: list[Measured] = []
        self.join_totals: list[float] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run while the block runs; afterwards no process is left."""
        self._task = asyncio.create_task(self._run.run())
        try:
            yield
        finally:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._prepared.directory.close()

    def look(self) -> None:
        """Take in what has happened since the last look."""
        if self._task.done():
            raise RuntimeError(f"the run has ended: {self._task.result().message}")
        self.ledger.read()
        for _, line in self._record.fresh():
            line["at"] = self._zero + line["t"]
            if line["kind"] == "membership":
                self.memberships.append(line)
            elif line["kind"] == "plan":
                self.plans.append(line)
            elif line["kind"] == "event" and line["event"] == "worker-started":
                self.started[line["message"].split()[0]] = line

    def members(self) -> list[str]:
        """Workers of the newest generation, in rank order."""
        return [member["worker_id"] for member in self.memberships[-1]["members"]] if self.memberships else []

    def pids(self, workers: Iterable[str]) -> list[int]:
        """Their processes."""
        return [int(self.started[worker]["pid"]) for worker in workers]

    async def whole(self) -> list[str]:
        """Wait until all workers have run some steps under the newest plan; return them in rank order."""

        def steady() -> list[str] | None:
            members = self.members()
            if len(members) < WORKERS:
                return None
            rows = [self.ledger.rows.get(pid, [])[-STEADY_STEPS:] for pid in self.pids(members)]
            newest = {(row.version, row.applied) for of in rows for row in of}
            whole = newest == {(self.plans[-1]["version"], True)} and all(len(row) == STEADY_STEPS for row in rows)
            return members if whole else None

        return await until("a whole group that steps", steady, self.look)

    async def changed_plan(self) -> None:
        """Wait until a plan that did not come with a membership is run by all."""
        change = await until("a new split by the planner", lambda: next(iter(self.changes()), None), self.look)
        await self._first_steps(self.pids(self.members()), lambda row: row.version >= change["version"])

    def changes(self) -> list[dict[str, Any]]:
        """Plans that did not come with a membership."""
        first = {line["plan"]["version"] for line in self.memberships}
        return [plan for plan in self.plans if plan["version"] not in first]

    def plan_steps(self) -> int:
        """Steps that ended under the old plan after a change was issued; the largest of all."""
        counts = []
        for plan in self.changes():
            rows = [row for of in self.ledger.rows.values() for row in of if row.applied]
            under = [row.after for row in rows if row.version == plan["version"]]
            before = [row.after for row in rows if row.at <= plan["at"]]
            if under:  # else a membership came before it
                counts.append(min(under) - 1 - max(before))
        return max(counts)

    async def signal(self, name: str, rank: int, number: signal.Signals) -> None:
        """Send a signal to one worker and measure until the others step on without it."""
        members = await self.whole()
        victim = members[rank]
        pid, survivors = self.pids([victim])[0], self.pids(worker for worker in members if worker != victim)
        if self._run.pids().get(victim) != pid:
            raise RuntimeError(f"{victim} is no longer process {pid}")
        generation = self.memberships[-1]["generation"]
        at = time.monotonic()
        os.kill(pid, number)
        resumed = await self._first_steps(survivors, lambda row: row.generation > generation)
        self._note(name, at, resumed, survivors)

    async def joined(self) -> None:
        """Measure the next join: the newcomer's way in, and how long the others are held up."""
        grown = await until("a newcomer's membership", self._grown, self.look)
        new, old = grown
        workers = [member["worker_id"] for member in new["members"]]
        known = {member["incarnation"] for member in old["members"]}
        fresh = [m["worker_id"] for m in new["members"] if m["incarnation"] not in known]
        running = self.pids(worker for worker in workers if worker not in fresh)
        resumed = await self._first_steps(running, lambda row: row.generation >= new["generation"])
        self._note("join", new["at"], resumed, running)
        for worker in fresh:
            begun = self.started[worker]
            self.join_totals.append(await self._first_steps(self.pids([worker]), lambda _: True) - begun["at"])

    def _grown(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        return (
            (self.memberships[-1], self.memberships[-2])
            if len(self.memberships) > 1 and len(self.members()) == WORKERS
            else None
        )

    async def _first_steps(self, pids: list[int], wanted: Callable[[Row], bool]) -> float:
        """Wait until each process has applied a wanted step; the time of the last one's first."""

        def all_there() -> float | None:
            firsts = [row.at for pid in pids if (row := self.ledger.first(pid, wanted)) is not None]
            return max(firsts) if len(firsts) == len(pids) else None

        return await until("the next step of all", all_there, self.look)

    def _note(self, name: str, begin: float, end: float, pids: list[int]) -> None:
        held = max(self.ledger.held_s(pid, begin, end) for pid in pids)
        lost = max(self.ledger.lost(pid, begin, end) for pid in pids)
        self.events.append(Measured(name, end - begin, held, lost))
        self._console.print(
            f"  {name}: {end - begin:.2f} s, held up {held:.2f} s, steps lost {lost}", style="dim", highlight=False
        )

    def step_s(self) -> float:
        """Median time between two steps under the split that the planner chose first."""
        version = self.changes()[0]["version"]
        under = [[row.at for row in rows if row.version == version] for rows in self.ledger.rows.values()]
        return statistics.median(b - a for ends in under for a, b in pairwise(ends))


def main() -> int:
    """Run the benchmark; 0 when all events were measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.elastic", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round; under a minute on two cores")
    quick = parser.parse_args().quick
    console = Console()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it cleans up then, too
    console.print(f"elastic events, {WORKERS} workers (a100, a100, t4, emulated), and torchrun beside them")
    with tempfile.TemporaryDirectory(prefix="rex-elastic-") as folder:
        figures = asyncio.run(_measure(Path(folder), console, rounds=1 if quick else 3))
    console.file.flush()
    print(json.dumps({"benchmark": "elastic", "quick": quick} | figures))
    return 0


async def _measure(folder: Path, console: Console, rounds: int) -> dict[str, Any]:
    drill = Drill(folder, console)
    torchrun: list[Measured] = []
    async with drill.running():
        await drill.changed_plan()
        for left in reversed(range(rounds)):
            await drill.signal("leave", -1, signal.SIGTERM)
            await drill.joined()
            await drill.signal("kill rank 0", 0, signal.SIGKILL)
            await drill.joined()
            await drill.signal("kill", 1, signal.SIGKILL)
            await drill.joined()
            await drill.whole()
            async with asyncio.TaskGroup() as both:
                both.create_task(drill.signal("stop", 1, signal.SIGSTOP))
                beside = both.create_task(_torchrun(folder / f"torchrun-{left}", console))
            torchrun.append(beside.result())
            if left:
                await drill.joined()
        plan_steps, step_s = drill.plan_steps(), drill.step_s()
    _show(drill.events + torchrun, console)

    def median(name: str, of: Callable[[Measured], float] = lambda event: event.seconds) -> float:
        return round(statistics.median(of(event) for event in drill.events + torchrun if event.name == name), 3)

    return {
        "rounds": rounds,
        "plan_steps": plan_steps,
        "join_s": median("join", lambda event: event.held_s),
        "leave_s": median("leave"),
        "kill_s": median("kill"),
        "kill_rank0_s": median("kill rank 0"),
        "stop_s": median("stop"),
        "steps_lost_max": max(event.lost for event in drill.events),
        "torchrun_kill_s": median("torchrun: kill"),
        "torchrun_steps_lost": max(event.lost for event in torchrun),
        "leave_held_s": median("leave", lambda event: event.held_s),
        "join_total_s": round(statistics.median(drill.join_totals), 3),
        "step_s": round(step_s, 4),
    }


async def _torchrun(folder: Path, console: Console) -> Measured:
    ledger_folder = folder / "ledger"
    ledger_folder.mkdir(parents=True)
    (folder / "train.py").write_text(DDP)
    settings = {"LEDGER": str(ledger_folder), "SAVE_EVERY": str(SAVE_EVERY), "SAVED": str(folder / "saved.pt")}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [f"--master-port={port}", "--nnodes=1", f"--nproc-per-node={WORKERS}", "--max-restarts=3"]
    ledger = Ledger(ledger_folder)
    with (folder / "log").open("wb") as out:
        agent = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *options, str(folder / "train.py")],
            env=os.environ | settings | {"OMP_NUM_THREADS": "1"},
            stdout=out,
            stderr=out,
        )

    def look() -> None:
        if agent.poll() is not None:
            raise RuntimeError(f"torchrun has ended: {(folder / 'log').read_text()[-2000:]}")
        ledger.read()

    def halfway() -> bool | None:
        ends = {rows[-1].after for rows in ledger.rows.values()} if len(ledger.rows) == WORKERS else set()
        return True if ends and min(ends) > SAVE_EVERY and min(ends) % SAVE_EVERY == SAVE_EVERY // 2 else None

    def anew() -> float | None:
        firsts = [ledger.first(pid, lambda row: row.after > reached) for pid in ledger.rows if pid not in old]
        there = [row.at for row in firsts if row is not None]
        return max(there) if len(there) == WORKERS else None

    try:
        await until("DDP between two checkpoints", halfway, look)
        old, at = set(ledger.rows), time.monotonic()
        os.kill(max(old), signal.SIGKILL)
        reached = max(row.after for pid in old for row in ledger.rows[pid])
        resumed = await until("a new step after torchrun's restart", anew, look)
    finally:
        agent.terminate()  # it ends its workers; should it not, they end when they see that it is gone
        try:
            await asyncio.to_thread(agent.wait, 20)
        finally:
            agent.kill()
    again = min(rows[0].before for pid, rows in ledger.rows.items() if pid not in old)
    measured = Measured("torchrun: kill", resumed - at, resumed - at, reached - again)
    console.print(f"  torchrun: kill: {measured.seconds:.2f} s, steps lost {measured.lost}", style="dim")
    return measured


async def until(what: str, found: Callable[[], T | None], look: Callable[[], None]) -> T:
    """Look until ``found`` returns something. Raises ``TimeoutError`` that names ``what`` never came."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        look()
        if (value := found()) is not None:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: nothing of it within {PATIENCE_S:g} s")
        await asyncio.sleep(0.01)


def _manifest(script: Path, ledger: Path) -> dict[str, Any]:
    env = {"REX_EMULATE_SCALE": str(SCALE), "LEDGER": str(ledger)}
    trainer = {
        "name": "trainer",
        "image": "none",
        "command": ["python", str(script)],
        "env": [{"name": name, "value": value} for name, value in env.items()],
    }
    spec = {
        "workers": {"min": 2, "max": WORKERS},
        "pools": [{"name": "a100", "maxWorkers": 2}, {"name": "t4", "maxWorkers": 1}],
        "batch": {"initial": BATCH, "min": BATCH, "max": BATCH},
        "learningRate": {"scaling": "none"},
        "planner": {"policy": "rex", "objective": "throughput", "search": {"maxTrials": 0}},
        "failure": {"maxRestarts": 100},
        "template": {"spec": {"containers": [trainer]}},
    }
    return {"apiVersion": "rex.dev/v1alpha1", "kind": "RexJob", "metadata": {"name": "elastic"}, "spec": spec}


def _show(events: list[Measured], console: Console) -> None:
    table = Table(title="medians")
    table.add_column("event")
    for name in ("times", "until the next group steps, s", "held up, s", "steps lost (most)"):
        table.add_column(name, justify="right")
    for name in dict.fromkeys(event.name for event in events):
        same = [event for event in events if event.name == name]
        seconds = statistics.median(event.seconds for event in same)
        held = statistics.median(event.held_s for event in same)
        table.add_row(name, str(len(same)), f"{seconds:.2f}", f"{held:.2f}", str(max(event.lost for event in same)))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
