"""How long does a periodic checkpoint hold a training up? A state of 200 MB (67 MB of weights, Adam), on this disk.

- ``held_first_s``, ``held_s``: from the boundary until training goes on under REX, which copies the state and leaves
  the writing to a thread: the first time, when the memory for the copy is allocated, and the median afterwards.
- ``busy_disk_s``: the same while the checkpoint before is still being written (median).
- ``at_once_s``: the same checkpoint, written before training goes on (median).
- ``loaded_s``: reading and checking it again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from rex_worker.checkpoint import CheckpointFolder
from rex_worker.environment import Environment
from rex_worker.group import Group
from rex_worker.keeping import Keeper
from rex_worker.link import AloneLink
from rex_worker.replica import Progress, Replica
from rex_worker.sampler import Position

WIDTH, LAYERS = 2048, 4
EVERY = 10


class Scene:
    """A replica after some steps, and its keeper."""

    def __init__(self, path: Path) -> None:
        model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
        torch.autograd.backward(model(torch.randn(8, WIDTH)).square().mean())
        optimizer.step()
        self.megabytes = 3 * sum(p.numel() * p.element_size() for p in model.parameters()) / 1e6
        self.folder = CheckpointFolder(path, keep=2)
        self.keeper = Keeper(self.folder, EVERY, AloneLink(Environment.read({})))
        self.replica = Replica(model, optimizer, None, Progress(Position(0)), 1000)
        self.group = Group(1, 0, 1, torch.device("cpu"), None, 60.0, lambda: False)

    def boundary(self) -> None:
        """Reach the next step at which a checkpoint is due."""
        progress = self.replica.progress
        self.replica.progress = replace(progress, step=progress.step + EVERY)
        self.keeper.keep_if_due(self.replica, self.group)


def seconds(act: Callable[[], Any]) -> float:
    """How long ``act`` takes."""
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def measure(path: Path, rounds: int) -> dict[str, float]:
    """Measure all of it in ``path``."""
    scene = Scene(path)
    held, busy = [], []
    for _ in range(rounds + 1):  # in the first one, memory is allocated: a copy is written while another one waits
        held.append(seconds(scene.boundary))
        busy.append(seconds(scene.boundary))
        scene.keeper.flush()

    def save() -> None:
        scene.boundary()
        scene.keeper.flush()

    return {
        "megabytes": scene.megabytes,
        "held_first_s": held[0],
        "held_s": median(held[1:]),
        "busy_disk_s": median(busy[1:]),
        "at_once_s": median(seconds(save) for _ in range(rounds)),
        "loaded_s": seconds(scene.folder.load_newest),
    }


def main() -> None:
    """Measure, and show it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rounds instead of ten")
    parser.add_argument("--folder", type=Path, help="where to write; a volume to be judged")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as path:
        figures = measure(Path(path), 3 if options.quick else 10)
    table = Table(title=f"checkpoints of {figures['megabytes']:.0f} MB")
    table.add_column("what")
    table.add_column("ms", justify="right")
    for name, value in figures.items():
        if name != "megabytes":
            table.add_row(name.removesuffix("_s").replace("_", " "), f"{1000 * value:.1f}")
    Console().print(table)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
