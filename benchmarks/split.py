"""Does the uneven split pay? Even shares against re-planned ones, in one real run on an emulated mix of devices.

The whole of ``rex run`` is at work: four worker processes (a100, a100, v100, t4) with gloo, the channel, the planner.
The batch is fixed, so that only the split changes. The job starts under the even split; the planner sees who is late
and moves shares. Both phases are measured in that one run, from the record that it writes. Devices are emulated: each
worker really computes, and then waits until its device's time for its share is over (``rex_worker.devices``).

What is measured, with B the global batch, b_i the shares and T the mean step time of a phase:

- ``spread``: largest over smallest of the workers' median compute times after re-planning; 1 is perfect.
- ``speedup_vs_even``: samples/s (B / T) after re-planning over samples/s under the even split.
- ``fraction_of_ideal``: B / T after re-planning over the sum of b_i / t_i(b_i), where t_i(b) is the time that device i
  takes by itself for b samples (its profile). That sum is what the four devices would do at these shares if none ever
  waited for another, for the network or for REX; so 1 - ``fraction_of_ideal`` is all that running together costs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
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
from rex_worker.devices import profile_of

BATCH = 720
"""The largest even share, 180, still fits the t4."""
SCALE = 3.0
"""Devices are emulated three times as slow as their profiles: four processes on two cores must not distort them."""
WARMUP_STEPS = 5
GIVE_UP_S = 300.0

DEVICES = {"w0": "a100", "w1": "a100", "w2": "v100", "w3": "t4"}
"""In the order in which a local run fills the pools."""

SCRIPT = """
import os

import torch
from torch import nn
from torch.utils.data import TensorDataset

import rex_worker as rex

batch = int(os.environ["BATCH"])
torch.manual_seed(0)
x = torch.randn(300 * batch, 16)  # a whole number of steps: no epoch ends with a short one
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
with rex.init() as session:
    model, optimizer = session.prepare(model, optimizer)
    loader = session.loader(TensorDataset(x, x.sum(1)), batch_size=batch)
    for epoch in session.epochs(100):
        for inputs, targets in loader:
            optimizer.zero_grad()
            session.backward(nn.functional.mse_loss(model(inputs).squeeze(1), targets))
            optimizer.step()
"""


@dataclass(frozen=True)
class Phase:
    """Steps under one plan, after warm-up."""

    steps: int
    shares: dict[str, int]
    compute_s: dict[str, float]
    """Median seconds per worker."""
    step_s: float
    """Mean seconds."""

    @property
    def rate(self) -> float:
        """Samples per second."""
        return sum(self.shares.values()) / self.step_s

    @property
    def spread(self) -> float:
        """Largest over smallest compute time."""
        return max(self.compute_s.values()) / min(self.compute_s.values())


class Watch:
    """Ends the run when a re-planned split has run for long enough."""

    def __init__(self, console: Console, steps: int) -> None:
        self.run: LocalRun | None = None
        self._console, self._steps = console, steps
        self._version, self._since = 0, 0

    def event(self, event: str, message: str) -> None:
        """Print what happens."""
        self._console.print(f"  {message}", style="dim", highlight=False)

    def decided(self, record: DecisionRecord) -> None:
        """Print a decision."""
        self._console.print(f"  step {record.step}: {record.kind}: {record.reason}", style="dim", highlight=False)

    def progress(self, view: JobView, seconds: float) -> None:
        """Look whether it is enough."""
        step = view.last_step
        if step is None or self.run is None:
            return
        if step.version != self._version:
            self._version, self._since = step.version, step.step
        if self._version > 1 and step.step - self._since >= self._steps and view.phase == "Running":
            self.run.interrupt("measured enough")


def main() -> int:
    """Run the benchmark; 0 when both phases were measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.split", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps; under a minute on two cores")
    quick = parser.parse_args().quick
    console = Console()
    console.print("even split against re-planned split, emulated a100, a100, v100, t4 (about half a minute)")
    with tempfile.TemporaryDirectory(prefix="rex-split-") as folder:
        lines = asyncio.run(_run(Path(folder), console, steps=30 if quick else 300))
    phases = measure(lines)
    if len(phases) < 2:
        console.print("the run ended before the split was re-planned; nothing was measured")
        return 1
    even, planned = phases[0], phases[-1]
    console.print(_table(even, planned))
    console.file.flush()
    print(json.dumps(figures(even, planned, quick=quick)))
    return 0


def measure(lines: list[dict[str, Any]]) -> list[Phase]:
    """Return one phase per plan version that ran for more than its warm-up, from the step lines of a record."""
    versions: dict[int, list[dict[str, Any]]] = {}
    for line in lines:
        versions.setdefault(line["version"], []).append(line)
    phases = []
    for _, steps in sorted(versions.items()):
        first = steps[0]["step"]
        steady = [line for line in steps if line["step"] >= first + WARMUP_STEPS]
        if steady:
            workers = steady[0]["compute_s"]
            phases.append(
                Phase(
                    steps=len(steady),
                    shares=steady[0]["local_batches"],
                    compute_s={w: statistics.median(line["compute_s"][w] for line in steady) for w in workers},
                    step_s=statistics.fmean(line["step_s"] for line in steady),
                )
            )
    return phases


def figures(even: Phase, planned: Phase, *, quick: bool) -> dict[str, Any]:
    """Return the figures of the benchmark; see the module for their meaning."""
    ideal = sum(
        share / (SCALE * profile_of(DEVICES[worker]).seconds(share)) for worker, share in planned.shares.items()
    )
    return {
        "benchmark": "split",
        "quick": quick,
        "spread": round(planned.spread, 4),
        "spread_even": round(even.spread, 4),
        "speedup_vs_even": round(planned.rate / even.rate, 4),
        "fraction_of_ideal": round(planned.rate / ideal, 4),
        "samples_per_s": round(planned.rate, 1),
        "samples_per_s_even": round(even.rate, 1),
        "global_batch": BATCH,
        "shares": planned.shares,
        "steps_measured": planned.steps,
        "steps_measured_even": even.steps,
    }


async def _run(folder: Path, console: Console, steps: int) -> list[dict[str, Any]]:
    (folder / "train.py").write_text(SCRIPT)
    file = folder / "split.yaml"
    file.write_text(yaml.safe_dump(_manifest(folder / "train.py")))
    watch = Watch(console, steps + WARMUP_STEPS)
    prepared = prepare(file, folder / "run")
    watch.run = LocalRun(
        prepared.job, prepared.program, prepared.directory, None, watch, max_seconds=GIVE_UP_S, emulate=True
    )
    try:
        await watch.run.run()
    finally:
        prepared.directory.close()
    record = (folder / "run" / "record.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, record) if line["kind"] == "step"]


def _manifest(script: Path) -> dict[str, Any]:
    return manifest(
        "split",
        script,
        {"REX_EMULATE_SCALE": str(SCALE), "BATCH": str(BATCH)},
        batch={"initial": BATCH, "min": BATCH, "max": BATCH},
        learningRate={"scaling": "none"},
        planner={"policy": "rex", "objective": "throughput", "search": {"maxTrials": 0}},
    )


def _table(even: Phase, planned: Phase) -> Table:
    table = Table(title="shares and compute times")
    table.add_column("worker")
    for name in ("even share", "ms", "re-planned share", "ms"):
        table.add_column(name, justify="right")
    for worker, device in DEVICES.items():
        table.add_row(
            f"{worker} {device}",
            str(even.shares[worker]),
            f"{1e3 * even.compute_s[worker]:.1f}",
            str(planned.shares[worker]),
            f"{1e3 * planned.compute_s[worker]:.1f}",
        )
    table.add_row("step", "", f"{1e3 * even.step_s:.1f}", "", f"{1e3 * planned.step_s:.1f}")
    table.add_row("samples/s", "", f"{even.rate:.0f}", "", f"{planned.rate:.0f}")
    return table


if __name__ == "__main__":
    sys.exit(main())
