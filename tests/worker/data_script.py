"""A training script that reads texts of unlike lengths by processes of its own, and keeps a ledger.

STREAM: read them as a stream. APART: a stream that is not the same on every worker; what is wrong with it. JUDGED:
judge the texts after each epoch, with a model that is the same in every run. NUM_WORKERS, and what ``ledger_script``
knows.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

import rex_worker as rex
from tests.worker.ledger_script import ENOUGH, EPOCHS, SIZE, digest, note
from tests.worker.readable import children

WORKER = int(os.environ["REX_WORKER_ID"][1:])
PROCESSES = int(os.environ.get("NUM_WORKERS", "1"))


class Texts(torch.utils.data.Dataset[tuple[int, torch.Tensor]]):
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.linspace(-1.0, index % 7, 1 + index % 11).reshape(-1, 1)


class Stream(torch.utils.data.IterableDataset[tuple[int, torch.Tensor]]):
    """The same texts in an order that is drawn in each epoch, unless it is to be ``apart``."""

    def __init__(self, apart: str) -> None:
        self.texts = Texts()
        self.apart = apart

    def __iter__(self) -> Iterator[tuple[int, torch.Tensor]]:
        numbers = list(range(SIZE))
        match self.apart:
            case "split":
                numbers = numbers[WORKER::2]
            case "length":
                numbers = numbers[: SIZE - WORKER]
            case _:
                random.shuffle(numbers)
        for number in numbers:
            yield self.texts[number]


def padded(samples: Sequence[tuple[int, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(text) for _, text in samples])
    tokens = nn.utils.rnn.pad_sequence([text for _, text in samples], batch_first=True)
    return torch.tensor([index for index, _ in samples]), tokens, torch.arange(tokens.shape[1]) < lengths[:, None]


def judge(model: nn.Module, batch: Any) -> list[float]:
    index, tokens, there = batch
    return [float(model(tokens).squeeze(2)[there].sum()), float(there.sum()), float(len(index))]


def main() -> None:
    torch.manual_seed(1 if "JUDGED" in os.environ else os.getpid())
    model: nn.Module = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.0 if "JUDGED" in os.environ else 0.01)
    dataset: Any = Stream(os.environ.get("APART", "")) if "STREAM" in os.environ else Texts()
    with rex.init() as session:
        model, optimizer = session.prepare(model, optimizer)
        loader = session.loader(dataset, batch_size=50, collate=padded, num_workers=PROCESSES)
        for epoch in session.epochs(EPOCHS):
            for index, tokens, there in loader:
                generation, before = session.plan.generation if session.plan else 0, session.step
                indices = index.tolist() if session.batch_weight > 0 else []
                note("batch", generation=generation, step=before + 1, epoch=epoch, indices=indices)
                optimizer.zero_grad()
                session.backward(model(tokens).squeeze(2)[there].square().mean())
                optimizer.step()
                if os.path.exists(ENOUGH):
                    session.stop()
                if session.step > before:
                    note("applied", generation=generation, step=session.step, epoch=epoch, readers=sorted(children()))
            if "JUDGED" in os.environ:
                totals = session.totals(Texts(), lambda batch: judge(model, batch), 20, collate=padded, num_workers=1)
                note("totals", epoch=epoch, totals=totals)
        note("end", step=session.step, samples=session.samples, digest=digest(model), rate=0.01)


if __name__ == "__main__":
    main()
