"""The smallest real training: a linear model on made-up data; STEPS, FAIL_AT and the like come from the environment."""

from __future__ import annotations

import os

import torch
from torch.utils.data import TensorDataset

import rex_worker as rex


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    inputs = torch.randn(2048, 8)
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    fail_at = int(os.environ.get("FAIL_AT", "0"))
    with rex.init() as session:
        model, optimizer = session.prepare(model, optimizer)
        loader = session.loader(dataset)
        for _ in session.epochs(int(os.environ.get("EPOCHS", "3"))):
            for x, y in loader:
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(x), y)
                session.backward(loss)
                optimizer.step()
                if fail_at and session.step >= fail_at and os.environ["REX_WORKER_ID"] == "w1":
                    raise RuntimeError("CANARY-FREE failure on purpose")


if __name__ == "__main__":
    main()
