"""A training script that keeps a ledger of each batch it was handed and each step it applied.

LEDGER: file to append JSON lines to. SAMPLES, EPOCHS: of the run. ENOUGH: a file; once it exists, the script ends
the training early. BREAK_AT: a step whose exchange succeeds for the others and seems to fail here. WEIGHTS: a seed;
the model is of float64, starts from it on every worker, and the ledger gets its last parameters. NUM_WORKERS: processes
that read ahead. Everything else is REX's environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

import rex_worker as rex
from rex_worker.errors import GroupLost
from rex_worker.group import Group

SIZE = int(os.environ.get("SAMPLES", "1003"))
EPOCHS = int(os.environ.get("EPOCHS", "3"))
LINGER_S = float(os.environ.get("LINGER_S", "0"))
ENOUGH = os.environ.get("ENOUGH", "/nowhere")
DTYPE = torch.float64 if "WEIGHTS" in os.environ else torch.float32
LEDGER = os.open(os.environ.get("LEDGER", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)


class Numbered(torch.utils.data.Dataset[tuple[int, torch.Tensor, torch.Tensor]]):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(SIZE, 8, generator=generator).to(DTYPE)
        self.y = self.x.sum(1, keepdim=True).sin()

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return index, self.x[index], self.y[index]


def note(kind: str, **fields: object) -> None:
    os.write(LEDGER, (json.dumps({"kind": kind, **fields}) + "\n").encode())


def digest(model: nn.Module) -> str:
    text = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return hashlib.sha256(text).hexdigest()[:16]


def break_once(step: int, session: rex.Session) -> None:
    """Let this worker miss the end of a step that its peers complete, as when a peer dies right then."""
    real = Group.wait

    def wait(self: Group, works: Sequence[Any]) -> None:
        real(self, works)
        if session.step == step - 1:
            Group.wait = real  # type: ignore[method-assign]
            raise GroupLost("as if a peer had died")

    Group.wait = wait  # type: ignore[method-assign]


def build(seed: int, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(dtype)


def main() -> None:
    # Every worker starts from other weights, as newcomers do, unless it is told from which.
    model = build(int(os.environ.get("WEIGHTS", os.getpid())), DTYPE)
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
    with rex.init() as session:
        model, optimizer, scheduler = session.prepare(model, optimizer, scheduler)
        loader = session.loader(Numbered(), batch_size=50, num_workers=int(os.environ.get("NUM_WORKERS", "0")))
        if "BREAK_AT" in os.environ:
            break_once(int(os.environ["BREAK_AT"]), session)
        for epoch in session.epochs(EPOCHS):
            for index, x, y in loader:
                generation, before = session.plan.generation if session.plan else 0, session.step
                indices = index.tolist() if session.batch_weight > 0 else []
                note("batch", generation=generation, step=before + 1, epoch=epoch, indices=indices)
                optimizer.zero_grad()
                session.backward(nn.functional.mse_loss(model(x), y))
                optimizer.step()
                if os.path.exists(ENOUGH):
                    session.stop()
                if session.step > before:
                    rate = optimizer.param_groups[0]["lr"]
                    note("applied", generation=generation, step=session.step, epoch=epoch, rate=rate, pid=os.getpid())
            scheduler.step()
            if session.is_main and LINGER_S:
                time.sleep(LINGER_S)
            session.report(epoch_done=epoch)
        note(
            "end",
            step=session.step,
            samples=session.samples,
            digest=digest(model),
            rate=optimizer.param_groups[0]["lr"],
            parameters=nn.utils.parameters_to_vector(model.parameters()).tolist() if "WEIGHTS" in os.environ else [],
        )


if __name__ == "__main__":
    main()
