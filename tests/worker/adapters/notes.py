"""What the adapters' test scripts have in common: numbered data for a tiny model, and a ledger of what was done."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

import rex_worker as rex
from tests.worker.ledger_script import digest, note

SIZE = int(os.environ.get("SAMPLES", "203"))
EPOCHS = int(os.environ.get("EPOCHS", "6"))
WORDS, LENGTH = 32, 8


class Sentences(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Counting sequences; the first two tokens are the sample's number, and are not learned."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        number = [index // WORDS, index % WORDS]
        ids = torch.tensor([*number, *((index + step) % WORDS for step in range(LENGTH - 2))])
        labels = ids.clone()
        labels[:2] = -100
        return {"input_ids": ids, "labels": labels}


class Points(torch.utils.data.Dataset[tuple[int, Tensor, Tensor]]):
    """Numbered points of a line."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[int, Tensor, Tensor]:
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return index, x, 2 * x[:1] - x[1:2]


def small_net() -> nn.Module:
    torch.manual_seed(os.getpid())  # every worker starts from other weights, as newcomers do
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))


class Notes:
    """Writes the ledger."""

    def __init__(self, session: rex.Session) -> None:
        self._session = session
        self._losses: list[float] = []

    def batch(self, indices: list[int]) -> None:
        session = self._session
        generation = session.plan.generation if session.plan else 0
        if session.batch_weight == 0:
            indices = []
        note("batch", generation=generation, step=session.step + 1, epoch=self._epoch(), indices=indices)

    def applied(self) -> None:
        session = self._session
        generation = session.plan.generation if session.plan else 0
        self._losses.append(session.loss)
        note("applied", generation=generation, step=session.step, epoch=0, pid=os.getpid())

    def end(self, model: nn.Module, **figures: Any) -> None:
        session = self._session
        tenth = max(1, len(self._losses) // 10)
        first, last = sum(self._losses[:tenth]) / tenth, sum(self._losses[-tenth:]) / tenth
        note(
            "end", step=session.step, samples=session.samples, digest=digest(model), rate=0, first=first, last=last,
            **figures,
        )  # fmt: skip

    def _epoch(self) -> int:
        return self._session.samples // SIZE
