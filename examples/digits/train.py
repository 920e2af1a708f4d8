"""Recognise handwritten digits with REX: any number of unlike workers, batches as planned. Compare with plain.py."""

import os

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import rex_worker as rex

EPOCHS = int(os.environ.get("EPOCHS", "60"))


def load() -> tuple[TensorDataset, Tensor, Tensor]:
    """Return training data (each digit also moved by one pixel in each direction) and held-out images and labels."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    held_out = torch.arange(len(labels)) % 3 == 0
    moves = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
    moved = torch.cat([images[~held_out].roll(move, dims=(1, 2)) for move in moves])
    return TensorDataset(moved, labels[~held_out].repeat(len(moves))), images[held_out], labels[held_out]


def build() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10))


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    return float((model(images).argmax(1) == labels).float().mean())


def main() -> None:
    torch.manual_seed(0)
    dataset, test_images, test_labels = load()
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.002)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    loss_fn = nn.CrossEntropyLoss()
    with rex.init() as session:
        model, optimizer, scheduler = session.prepare(model, optimizer, scheduler)
        loader = session.loader(dataset, batch_size=64)
        for epoch in session.epochs(EPOCHS):
            for x, y in loader:
                optimizer.zero_grad()
                loss = loss_fn(model(x), y)
                session.backward(loss)
                optimizer.step()
            scheduler.step()
            held_out = accuracy(model, test_images, test_labels)
            print(f"epoch {epoch}: held-out accuracy {held_out:.4f}")
            session.report(accuracy=held_out)


if __name__ == "__main__":
    main()
