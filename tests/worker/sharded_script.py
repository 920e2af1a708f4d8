"""As ``ledger_script``, of a model that is sharded over the workers.

Its ledger's ``end`` has the parameters of the whole model. WEIGHTS: seed of the initial ones. WHOLE: do not shard.
CLIP: norm of the gradients. PAUSE_BEFORE_S, PAUSE_S: seconds before and after each pass.
"""

from __future__ import annotations

import json
import os
import time

import torch
from torch import nn
from torch.distributed.tensor import DTensor

import rex_worker as rex
from tests.worker.sharded_model import Numbered, build, shard

SIZE = int(os.environ.get("SAMPLES", "503"))
EPOCHS = int(os.environ.get("EPOCHS", "3"))
PAUSE_S = float(os.environ.get("PAUSE_S", "0"))
PAUSE_BEFORE_S = float(os.environ.get("PAUSE_BEFORE_S", "0"))
CLIP = float(os.environ.get("CLIP", "0"))
ENOUGH = os.environ.get("ENOUGH", "/nowhere")
LEDGER = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def note(kind: str, **fields: object) -> None:
    os.write(LEDGER, (json.dumps({"kind": kind, **fields}) + "\n").encode())


def whole(model: nn.Module) -> list[float]:
    """The parameters of all workers together; every worker calls this."""
    full = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    return nn.utils.parameters_to_vector(full).tolist()


def main() -> None:
    model, optimizer = build(int(os.environ.get("WEIGHTS", os.getpid())))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
    first = model.get_submodule("first")
    with rex.init() as session:
        policy = None if os.environ.get("WHOLE") else shard
        model, optimizer, scheduler = session.prepare(model, optimizer, scheduler, shard=policy)
        loader = session.loader(Numbered(SIZE), batch_size=50)
        for epoch in session.epochs(EPOCHS):
            for index, x, y in loader:
                generation, before = session.plan.generation if session.plan else 0, session.step
                indices = index.tolist() if session.batch_weight > 0 else []
                note("batch", generation=generation, step=before + 1, epoch=epoch, indices=indices)
                time.sleep(PAUSE_BEFORE_S)
                optimizer.zero_grad()
                session.backward(nn.functional.mse_loss(model(x), y))
                if CLIP:
                    session.clip_gradients(CLIP)
                optimizer.step()
                time.sleep(PAUSE_S)
                if os.path.exists(ENOUGH):
                    session.stop()
                if session.step > before:
                    rate = optimizer.param_groups[0]["lr"]
                    note("applied", generation=generation, step=session.step, epoch=epoch, rate=rate, pid=os.getpid())
            scheduler.step()
        assert model.get_submodule("first") is first, "the script's references hold"
        parts = [p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in model.parameters()]
        note(
            "end",
            step=session.step,
            samples=session.samples,
            digest="",
            rate=optimizer.param_groups[0]["lr"],
            parameters=whole(model),
            held=sum(parts),
        )


if __name__ == "__main__":
    main()
