"""What does reading ahead cost, and does it hide the reading? REX's loader beside torch's own, in one run.

Both read the same samples in the same order with the same number of processes; the two take turns.

- ``ratio_reading``: time per batch where reading is all there is to do (samples take 1 ms each), REX over torch.
- ``overhead_us``: processor time of the training process that a batch costs more under REX, with samples that cost
  nothing; ``readers_us``: the same of the reading processes, which seed each sample.
- ``hidden_ms``: median time that a step of 40 ms waits for its data, read in 16 ms by each process; torch's beside it.
- ``change_ms``: the same for the first step after a change of the plan, which nobody could read ahead.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, Dataset

from rex_worker.loader import MapSource
from rex_worker.recipe import recipe
from rex_worker.sampler import Outlook, Position, permutation

CPU = torch.device("cpu")
BATCH, PROCESSES, WARMUP = 16, 2, 4
SAMPLE_S, STEP_S = 0.001, 0.04


class Slow(Dataset[torch.Tensor]):
    """Samples that take a while to come, as from a disk."""

    def __init__(self, size: int, sample_s: float) -> None:
        self.size = size
        self.sample_s = sample_s
        self.x = torch.randn(64)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.sample_s:
            time.sleep(self.sample_s)
        return self.x + index


def torchs(dataset: Slow, changes: int) -> Iterator[tuple[Any, bool]]:
    """Batches of torch's loader; it knows no changes."""
    order = np.array_split(permutation(1, 0, len(dataset)), len(dataset) // BATCH)
    loader = DataLoader(
        dataset, batch_sampler=[part.tolist() for part in order], num_workers=PROCESSES, persistent_workers=True
    )
    for batch in loader:
        yield batch, False


def rexs(dataset: Slow, changes: int) -> Iterator[tuple[Any, bool]]:
    """Batches of REX's loader; every ``changes`` steps the plan changes."""
    source = MapSource(recipe(dataset, num_workers=PROCESSES), CPU, epochs=1)
    position, number = Position(1), 0
    while position.epoch == 0:
        number += 1
        rank = number // changes % 2 if changes else 0
        layout = source.lay_out(Outlook(position, (BATCH, BATCH) if changes else (BATCH,), rank))
        yield source.fetch(0), bool(changes) and number % changes == 0
        position = position.advance(layout.total, ends_epoch=layout.ends_epoch)
    source.close()


def waits(batches: Iterator[tuple[Any, bool]], work_s: float) -> tuple[list[float], list[float]]:
    """Seconds that each step waited for its batch: those of plain steps, and those of the first after a change."""
    plain: list[float] = []
    changed: list[float] = []
    number = 0
    while True:
        begun = time.perf_counter()
        batch, change = next(batches, (None, False))
        waited = time.perf_counter() - begun
        if batch is None:
            return plain, changed
        number += 1
        if number > WARMUP:
            (changed if change else plain).append(waited)
        time.sleep(work_s)


def processor_s(batches: Iterator[tuple[Any, bool]]) -> list[float]:
    """Processor seconds per batch: of this process, and of those that read (known once they have ended)."""
    next(batches)
    own, before, count = time.process_time(), os.times(), 0
    for _ in batches:
        count += 1
    own, after = time.process_time() - own, os.times()
    readers = after.children_user + after.children_system - before.children_user - before.children_system
    return [own / count, readers / count]


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loading", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps and rounds; under a minute on two cores")
    quick = parser.parse_args().quick
    rounds, steps = (3, 60) if quick else (9, 150)
    systems: dict[str, Callable[[Slow, int], Iterator[tuple[Any, bool]]]] = {"torch": torchs, "rex": rexs}
    reading: dict[str, list[float]] = {name: [] for name in systems}
    cost: dict[str, list[list[float]]] = {name: [] for name in systems}
    hidden: dict[str, list[float]] = {name: [] for name in systems}
    changed: list[float] = []
    for number in range(rounds):
        for name in list(systems) if number % 2 == 0 else reversed(systems):
            make = systems[name]
            reading[name].append(statistics.mean(waits(make(Slow(BATCH * steps, SAMPLE_S), 0), 0.0)[0]))
            cost[name].append(processor_s(make(Slow(BATCH * 10 * steps, 0.0), 0)))
            hidden[name] += waits(make(Slow(BATCH * steps // 2, SAMPLE_S), 0), STEP_S)[0]
        changed += waits(rexs(Slow(BATCH * steps, SAMPLE_S), 10), STEP_S)[1]
    medians = {name: [statistics.median(figures[name]) for figures in (reading, hidden)] for name in systems}
    costs = {name: [statistics.median(figures) for figures in zip(*cost[name], strict=True)] for name in systems}
    table = Table("per batch", "torch", "REX")
    for row, what in enumerate(("reading only, ms", f"wait of a {1e3 * STEP_S:g} ms step, ms")):
        table.add_row(what, *(f"{1e3 * medians[name][row]:.3f}" for name in systems))
    table.add_row("wait after a change, ms", "", f"{1e3 * statistics.median(changed):.3f}")
    for row, what in enumerate(("processor time of the trainer, us", "of the readers, us")):
        table.add_row(what, *(f"{1e6 * costs[name][row]:.0f}" for name in systems))
    console = Console()
    console.print(table)
    console.file.flush()
    result = {
        "benchmark": "loading",
        "quick": quick,
        "ratio_reading": round(medians["rex"][0] / medians["torch"][0], 4),
        "overhead_us": round(1e6 * (costs["rex"][0] - costs["torch"][0]), 1),
        "readers_us": round(1e6 * (costs["rex"][1] - costs["torch"][1]), 1),
        "hidden_ms": round(1e3 * medians["rex"][1], 3),
        "hidden_torch_ms": round(1e3 * medians["torch"][1], 3),
        "change_ms": round(1e3 * statistics.median(changed), 3),
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
