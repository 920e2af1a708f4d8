"""A training script whose weight moves by exactly the rate in force, and which writes down both, and the base rate.

LEDGER: file to append JSON lines to. ENOUGH: a file; once it exists, the script ends the training early.
"""

from __future__ import annotations

import json
import os

import torch
from torch import nn

import rex_worker as rex

LEDGER = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
DATA = torch.utils.data.TensorDataset(torch.zeros(500, 1))


def main() -> None:
    model = nn.Linear(1, 1, bias=False).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    with rex.init() as session:
        model, prepared, scheduler = session.prepare(model, optimizer, scheduler)
        loader = session.loader(DATA, batch_size=20)
        for _ in session.epochs(10_000):
            for (_x,) in loader:
                prepared.zero_grad()
                session.backward(model.weight.sum())
                before, step = float(model.weight.detach()), session.step
                base = float(optimizer.param_groups[0]["lr"])
                prepared.step()
                scheduler.step()
                if session.step > step:
                    move = before - float(model.weight.detach())
                    entry = {"kind": "applied", "step": session.step, "samples": session.samples, "base": base}
                    os.write(LEDGER, (json.dumps({**entry, "factor": move / base}) + "\n").encode())
                if os.path.exists(os.environ["ENOUGH"]):
                    session.stop()


if __name__ == "__main__":
    main()
