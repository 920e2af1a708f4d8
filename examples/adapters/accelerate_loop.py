"""A loop that was written for Accelerate, on REX: the handwritten digits."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader

from examples.digits.train import accuracy, build, load
from rex_worker.adapters.accelerate import Accelerator

EPOCHS = int(os.environ.get("EPOCHS", "10"))


def main() -> None:
    torch.manual_seed(0)
    train, images, labels = load()
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.002)
    loader = DataLoader(train, batch_size=64, shuffle=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    with Accelerator() as accelerator:
        model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
        for epoch in accelerator.epochs(EPOCHS):
            for x, y in loader:
                optimizer.zero_grad()
                accelerator.backward(nn.functional.cross_entropy(model(x), y))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            scheduler.step()
            held_out = accuracy(model, images.to(accelerator.device), labels.to(accelerator.device))
            accelerator.print(f"epoch {epoch}: held-out accuracy {held_out:.4f}")
            accelerator.log({"accuracy": held_out})


if __name__ == "__main__":
    main()
