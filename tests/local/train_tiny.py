"""A very small training for the tests: a line fitted to points. SAMPLES and EPOCHS set how long it takes."""

import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import rex_worker as rex


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    say(f"process {os.getpid()} began at {time.time()}")
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, int(os.environ.get("SAMPLES", "2048"))).unsqueeze(1)
    dataset = TensorDataset(x, 3 * x + 1)
    model: nn.Module = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with rex.init() as session:
        model, optimizer = session.prepare(model, optimizer)
        loader = session.loader(dataset, batch_size=32)
        for epoch in session.epochs(int(os.environ.get("EPOCHS", "20"))):
            if epoch == 2 and os.environ.get("RAISE"):
                raise RuntimeError(os.environ["RAISE"])
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(inputs), targets)
                session.backward(loss)
                optimizer.step()
            session.report(loss=float(loss.detach()))
    say("script ended")


if __name__ == "__main__":
    main()
