"""Lightning on REX: the handwritten digits as a LightningModule."""

import os
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import rex_worker as rex
from examples.digits.train import build, load
from rex_worker.adapters.lightning import RexStrategy

EPOCHS = int(os.environ.get("EPOCHS", "10"))


class Digits(LightningModule):
    """A small classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.net = build()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of one micro-batch."""
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Accuracy on held-out digits."""
        x, y = batch
        accuracy = (self.net(x).argmax(1) == y).float().mean()
        self.log("accuracy", accuracy, prog_bar=True)

    def configure_optimizers(self) -> Any:
        """As for any LightningModule."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.002)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)}


def main() -> None:
    torch.manual_seed(0)
    train, images, labels = load()
    with rex.init() as session:
        trainer = Trainer(strategy=RexStrategy(session), max_epochs=EPOCHS, logger=False, enable_checkpointing=False)
        trainer.fit(Digits(), DataLoader(train, 64, shuffle=True), DataLoader(TensorDataset(images, labels), 600))
        session.report(accuracy=float(trainer.callback_metrics["accuracy"]))


if __name__ == "__main__":
    main()
