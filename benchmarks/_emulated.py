"""All policies on real training: four worker processes with gloo, each paced like a device of its kind.

A small network learns handwritten digits until its held-out accuracy reaches a target. Everything is real but the
devices' speed: processes, gradients, the channel, the planner of the chosen policy, the plans that are pushed. In the
scene ``straggler`` one a100 takes twice as long from some point on; the extra time is slept in the script, where only
its own measurement can tell the planner of it.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from benchmarks._mixed import manifest
from rex_operator.jobs import JobView
from rex_operator.local.run import LocalRun
from rex_operator.local.start import prepare
from rex_operator.planning import DecisionRecord

TARGET = 0.965
"""Held-out accuracy that ends a run; the digits' network gets to about 0.985."""
SCALE = 2.0
"""Devices are emulated twice as slow as their profiles: four processes on two cores must not distort them."""
GIVE_UP_S = 240.0
SCENES = ("static", "straggler")

SCRIPT = """
import os
import sys
import time

import torch
from torch import nn

sys.path.insert(0, os.environ["PROJECT"])
import rex_worker as rex
from examples.digits.train import accuracy, build, load
from rex_worker.devices import profile_of

SLOW = os.environ["SCENE"] == "straggler" and os.environ["REX_WORKER_ID"] == "w0"
SCALE = float(os.environ["REX_EMULATE_SCALE"])
device = profile_of("a100")
torch.manual_seed(int(os.environ["SEED"]))
dataset, images, labels = load()
model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loss_fn = nn.CrossEntropyLoss()
with rex.init() as session:
    model, optimizer = session.prepare(model, optimizer)
    loader = session.loader(dataset, batch_size=64)
    for epoch in session.epochs(200):
        for x, y in loader:
            if SLOW and epoch >= 1 and len(x):
                time.sleep(2 * SCALE * device.seconds(len(x)))
            optimizer.zero_grad()
            session.backward(loss_fn(model(x), y))
            optimizer.step()
        session.report(accuracy=accuracy(model, images, labels))
"""


@dataclass(frozen=True)
class Run:
    """One training run."""

    policy: str
    scene: str
    seed: int
    seconds: float | None
    """Seconds of training to the target; None: not reached within the bound."""
    samples: int
    batch: int
    decisions: int

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / (self.seconds or GIVE_UP_S)


class Watch:
    """Ends a run at the target."""

    def __init__(self) -> None:
        self.run: LocalRun | None = None
        self.seconds: float | None = None
        self.samples = self.batch = self.decisions = 0

    def event(self, event: str, message: str) -> None:
        """Take no notice."""

    def decided(self, record: DecisionRecord) -> None:
        """Count a decision."""
        self.decisions += 1

    def progress(self, view: JobView, seconds: float) -> None:
        """Look whether the target is reached."""
        if self.run is None or view.last_step is None or self.seconds is not None:
            return
        self.samples = view.last_step.samples
        self.batch = view.plan.global_batch if view.plan else 0
        if view.metrics.get("accuracy", 0.0) >= TARGET:
            self.seconds = seconds
            self.run.interrupt("the target is reached")


def compare(policies: Sequence[str], seeds: int, console: Console, scenes: Sequence[str] = SCENES) -> dict[str, Any]:
    """Train under each policy in each scene; print a table and return the figures."""
    runs = []
    for policy, scene, seed in _cells(policies, scenes, seeds):
        runs.append(train(policy, scene, seed))
        took = "not reached" if runs[-1].seconds is None else f"{runs[-1].seconds:.1f} s"
        console.print(f"  {scene}, seed {seed}, {policy}: {took}, batch {runs[-1].batch}", style="dim", highlight=False)
    console.print(_table(runs))
    return {"target_accuracy": TARGET, "scale": SCALE, "cells": list(_figures(runs))}


def _cells(policies: Sequence[str], scenes: Sequence[str], seeds: int) -> Iterator[tuple[str, str, int]]:
    """Yield the runs so that all policies of one seed are neighbours: the machine's moods hit them alike."""
    for scene in scenes:
        for seed in range(seeds):
            for policy in policies:
                yield policy, scene, seed


def train(policy: str, scene: str, seed: int) -> Run:
    """Train once, really."""
    with tempfile.TemporaryDirectory(prefix="rex-policies-") as folder:
        watch = asyncio.run(_run(Path(folder), policy, scene, seed))
    return Run(policy, scene, seed, watch.seconds, watch.samples, watch.batch, watch.decisions)


async def _run(folder: Path, policy: str, scene: str, seed: int) -> Watch:
    (folder / "train.py").write_text(SCRIPT)
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(_manifest(folder / "train.py", policy, scene, seed)))
    watch = Watch()
    prepared = prepare(file, folder / "run")
    watch.run = LocalRun(
        prepared.job, prepared.program, prepared.directory, None, watch, max_seconds=GIVE_UP_S, emulate=True
    )
    try:
        await watch.run.run()
    finally:
        prepared.directory.close()
    return watch


def _manifest(script: Path, policy: str, scene: str, seed: int) -> dict[str, Any]:
    env = {
        "REX_EMULATE_SCALE": str(SCALE),
        "SCENE": scene,
        "SEED": str(seed),
        "PROJECT": str(Path(__file__).resolve().parent.parent),
        "OMP_NUM_THREADS": "1",
    }
    return manifest(
        "policies",
        script,
        env,
        batch={"initial": 64, "min": 32, "max": 512},
        learningRate={"scaling": "adascale"},
        planner={
            "policy": policy,
            "objective": "goodput",
            "validation": {"alpha": 0.05, "minEffect": 0.02, "warmupSteps": 5, "minSteps": 20, "maxSteps": 200},
            "search": {"maxTrials": 20, "cooldownSeconds": 2},
        },
    )


def _grouped(runs: Sequence[Run]) -> dict[tuple[str, str], list[Run]]:
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.scene, run.policy), []).append(run)
    return groups


def _figures(runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    for (scene, policy), group in _grouped(runs).items():
        times = [run.seconds or GIVE_UP_S for run in group]
        yield {
            "scene": scene,
            "policy": policy,
            "seconds": round(statistics.fmean(times), 2),
            "sd": round(statistics.stdev(times), 2) if len(times) > 1 else None,
            "missed": sum(run.seconds is None for run in group),
            "samples_per_s": round(statistics.fmean(run.rate for run in group), 1),
            "batch": statistics.median(run.batch for run in group),
            "decisions": statistics.fmean(run.decisions for run in group),
        }


def _table(runs: Sequence[Run]) -> Table:
    table = Table(title=f"real training on emulated devices: seconds to {TARGET:.1%} held-out accuracy")
    table.add_column("policy")
    scenes = list(dict.fromkeys(run.scene for run in runs))
    for scene in scenes:
        table.add_column(f"{scene}, s", justify="right")
        table.add_column("samples/s", justify="right")
    cells = {(c["scene"], c["policy"]): c for c in _figures(runs)}
    for policy in dict.fromkeys(run.policy for run in runs):
        row = [policy]
        for scene in scenes:
            cell = cells[scene, policy]
            sd = "" if cell["sd"] is None else f" ± {cell['sd']:.1f}"
            row += [f"{cell['seconds']:.1f}{sd}", f"{cell['samples_per_s']:.0f}"]
        table.add_row(*row)
    return table
