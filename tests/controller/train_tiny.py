"""The smallest real training: a linear model on made-up data.

EPOCHS: how many. ENOUGH: a file; once it exists, the training ends.
"""

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
    enough = os.environ.get("ENOUGH", "/nowhere")
    with rex.init() as session:
        model, optimizer = session.prepare(model, optimizer)
        loader = session.loader(dataset)
        for _ in session.epochs(int(os.environ.get("EPOCHS", "3"))):
            for x, y in loader:
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(x), y)
                session.backward(loss)
                optimizer.step()
                if os.path.exists(enough):
                    session.stop()


if __name__ == "__main__":
    main()
