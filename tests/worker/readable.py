"""Datasets that reading processes can be given by fork and by spawn, and a session's loop over them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import rex_worker as rex


class Drawn(Dataset[dict[str, Any]]):
    """Each sample draws from all three generators."""

    def __init__(self, size: int = 60) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        return drawn(index)


class DrawnStream(IterableDataset[dict[str, Any]]):
    def __init__(self, size: int = 60) -> None:
        self.size = size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for index in range(self.size):
            yield drawn(index)


def drawn(index: int) -> dict[str, Any]:
    x = torch.full((3,), float(index))
    return {"index": index, "x": x, "drawn": [random.random(), float(np.random.rand()), float(torch.rand(()))]}


class Broken(Drawn):
    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 17:
            raise LookupError("sample 17 cannot be read")
        return super().__getitem__(index)


class BrokenStream(DrawnStream):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        for sample in super().__iter__():
            if sample["index"] == 17:
                raise LookupError("sample 17 cannot be read")
            yield sample


class Opened(Drawn):
    """Reads from a file that each process opens for itself, as worker_init_fn is used."""

    file: Any = None

    def __getitem__(self, index: int) -> dict[str, Any]:
        os.pread(self.file, 1, 0)
        return super().__getitem__(index) | {"number": self.number}

    number = -1


def open_file(number: int) -> None:
    info = get_worker_info()
    assert info is not None and info.id == number
    dataset: Any = info.dataset
    dataset.file, dataset.number = os.open(os.devnull, os.O_RDONLY), number


def train(
    dataset: Any, each: Callable[[rex.Session, dict[str, Any]], None], epochs: int = 2, **options: Any
) -> rex.Session:
    """Train alone, handing each batch to ``each``; returns the ended session."""
    model: nn.Module = nn.Linear(3, 1)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with rex.init() as session:
        model, optimizer = session.prepare(model, optimizer)
        loader = session.loader(dataset, **options)
        for _ in session.epochs(epochs):
            for batch in loader:
                each(session, batch)
                optimizer.zero_grad()
                session.backward(model(batch["x"]).square().mean())
                optimizer.step()
    return session


def children() -> set[int]:
    """The processes that this one started and that have not ended."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has just ended
            found.update(int(pid) for pid in (task / "children").read_text().split())
    return {pid for pid in found if runs(pid)}


def runs(pid: int) -> bool:
    try:
        state, line = Path(f"/proc/{pid}/status").read_text(), Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return "(zombie)" not in state and "multiprocessing.resource_tracker" not in line  # Python's own, until the end
