"""What does REX cost per step? The same training under plain DDP and under REX, at equal batches, in one run.

Two workers train a small network whose forward pass sleeps until a step's work has taken 50 ms (then 5 ms), so that
both systems do the same reductions after the same compute, and the sleep leaves the cores to what is measured. REX runs
with all of ``rex run`` around it: channel, telemetry, noise-scale statistics, votes, planner. The two take turns,
several rounds in one run, so that a change of the machine's mood meets both.

- ``ratio_50ms``, ``ratio_5ms``: median step time under REX over the median under DDP, all rounds together.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from benchmarks._silent import Silent
from rex_operator.local.run import LocalRun
from rex_operator.local.start import prepare

WORKERS, LOCAL_BATCH, WARMUP_STEPS = 2, 32, 15
WORK_S = {"50ms": 0.05, "5ms": 0.005}

COMMON = """
import json, os, time
import torch
from torch import nn

BATCH, WARMUP = int(os.environ["BATCH"]), int(os.environ["WARMUP"])
PHASES = [(float(work), int(steps)) for work, steps in json.loads(os.environ["PHASES"])]


class Paced(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
        self.work = PHASES[0][0]

    def forward(self, x):
        end = time.perf_counter() + self.work
        out = self.layers(x)
        time.sleep(max(0.0, end - time.perf_counter()))
        return out


torch.set_num_threads(1)
data = torch.randn(sum(steps for _, steps in PHASES) * BATCH, 64)
times = []


def next_step(model):
    times.append(time.perf_counter())
    done = len(times)
    for work, steps in PHASES:
        model.work = work
        if done <= steps:
            break
        done -= steps


def keep(path):
    steps, start = {}, 0
    for work, count in PHASES:
        phase = times[start + WARMUP : start + count]
        steps[str(work)] = [after - before for before, after in zip(phase, phase[1:])]
        start += count
    with open(path, "w") as file:
        json.dump(steps, file)
"""

DDP = """
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
plain = Paced()
model = nn.parallel.DistributedDataParallel(plain)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for x in data.split(BATCH):
    mine = x[rank * (BATCH // size) : (rank + 1) * (BATCH // size)]
    optimizer.zero_grad()
    loss = model(mine).square().mean()
    loss.backward()
    optimizer.step()
    next_step(plain)
if rank == 0:
    keep(os.environ["FIGURES"])
dist.barrier()
dist.destroy_process_group()
"""

REX = """
from torch.utils.data import TensorDataset

import rex_worker as rex

model = Paced()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
with rex.init() as session:
    model, optimizer = session.prepare(model, optimizer)
    loader = session.loader(TensorDataset(data))
    for _ in session.epochs(1):
        for (x,) in loader:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            session.backward(loss)
            optimizer.step()
            next_step(model)
    if session.is_main:
        keep(os.environ["FIGURES"])
"""


def main() -> int:
    """Run the benchmark; 0 when both systems were measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps and rounds; under a minute on two cores")
    quick = parser.parse_args().quick
    console = Console()
    rounds, steps = (2, {"50ms": 60, "5ms": 200}) if quick else (5, {"50ms": 200, "5ms": 1000})
    console.print(f"plain DDP against REX, {WORKERS} workers, {rounds} rounds")
    figures: dict[str, dict[str, list[float]]] = {system: {name: [] for name in WORK_S} for system in ("ddp", "rex")}
    with tempfile.TemporaryDirectory(prefix="rex-overhead-") as folder:
        for number in range(rounds):
            for system in ("ddp", "rex") if number % 2 == 0 else ("rex", "ddp"):
                home = Path(folder) / f"{system}-{number}"
                home.mkdir()
                measured = (_ddp if system == "ddp" else _rex)(home, steps)
                for name, work in WORK_S.items():
                    figures[system][name] += measured[str(work)]
    medians = {system: {name: statistics.median(t) for name, t in of.items()} for system, of in figures.items()}
    table = Table(title="median step, ms")
    table.add_column("work")
    for column in ("DDP", "REX", "ratio"):
        table.add_column(column, justify="right")
    ratios = {name: medians["rex"][name] / medians["ddp"][name] for name in WORK_S}
    for name in WORK_S:
        ms = [f"{1e3 * medians[system][name]:.2f}" for system in ("ddp", "rex")]
        table.add_row(name, *ms, f"{ratios[name]:.4f}")
    console.print(table)
    console.file.flush()
    result: dict[str, Any] = {"benchmark": "overhead", "quick": quick, "rounds": rounds, "workers": WORKERS}
    print(json.dumps(result | {f"ratio_{name}": round(ratio, 4) for name, ratio in ratios.items()}))
    return 0


def _settings(home: Path, steps: dict[str, int]) -> dict[str, str]:
    return {
        "BATCH": str(WORKERS * LOCAL_BATCH),
        "WARMUP": str(WARMUP_STEPS),
        "PHASES": json.dumps([[WORK_S[name], steps[name]] for name in WORK_S]),
        "FIGURES": str(home / "figures.json"),
    }


def _ddp(home: Path, steps: dict[str, int]) -> dict[str, list[float]]:
    (home / "train.py").write_text(COMMON + DDP)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(WORKERS), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(home / "train.py")],
            env=os.environ | meeting | _settings(home, steps) | {"RANK": str(rank)},
        )
        for rank in range(WORKERS)
    ]
    try:
        codes = [process.wait(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(codes):
        raise RuntimeError(f"the DDP processes ended with {codes}")
    return _read(home)


def _rex(home: Path, steps: dict[str, int]) -> dict[str, list[float]]:
    (home / "train.py").write_text(COMMON + REX)
    batch = WORKERS * LOCAL_BATCH
    trainer = {
        "name": "trainer",
        "image": "none",
        "command": ["python", str(home / "train.py")],
        "env": [{"name": name, "value": value} for name, value in _settings(home, steps).items()],
    }
    manifest = home / "job.yaml"
    spec = {
        "workers": {"min": WORKERS, "max": WORKERS},
        "pools": [{"name": "cpu", "maxWorkers": WORKERS}],
        "batch": {"initial": batch, "min": batch, "max": batch},
        "planner": {"policy": "even"},
        "template": {"spec": {"containers": [trainer]}},
    }
    job = {"apiVersion": "rex.dev/v1alpha1", "kind": "RexJob", "metadata": {"name": "overhead"}, "spec": spec}
    manifest.write_text(yaml.safe_dump(job))
    prepared = prepare(manifest, home / "run")
    run = LocalRun(prepared.job, prepared.program, prepared.directory, None, Silent(), max_seconds=300.0, emulate=False)
    try:
        asyncio.run(run.run())
    finally:
        prepared.directory.close()
    return _read(home)


def _read(home: Path) -> dict[str, list[float]]:
    measured: dict[str, list[float]] = json.loads((home / "figures.json").read_text())
    return measured


if __name__ == "__main__":
    sys.exit(main())
