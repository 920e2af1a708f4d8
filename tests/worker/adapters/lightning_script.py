"""A tiny network under Lightning's Trainer. OUT: where Lightning writes."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader

import rex_worker as rex
from rex_worker.adapters.lightning import RexStrategy
from tests.worker.adapters.notes import EPOCHS, Notes, Points, small_net


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = small_net()
        self.validations: list[float] = []
        self.steps: list[int] = []
        self.notes: Notes

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        index, x, y = batch
        self.notes.batch(index.tolist())
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def on_train_batch_end(self, *about: Any) -> None:
        self.notes.applied()
        self.steps.append(self.trainer.global_step)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        _, x, y = batch
        self.log("valid_loss", nn.functional.mse_loss(self.net(x), y))

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.validations.append(float(self.trainer.callback_metrics["valid_loss"]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=3e-3)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def main() -> None:
    # Lightning warns of few reading processes and of its own use of torch; neither is about what is tested.
    warnings.filterwarnings("ignore", module="lightning|torch")
    out = os.environ["OUT"]
    module = Module()
    stop = [EarlyStopping("valid_loss", min_delta=100.0, patience=1)] if "STOP" in os.environ else []
    data = DataLoader(Points(), batch_size=16, shuffle=True)
    with rex.init() as session:
        module.notes = Notes(session)
        trainer = Trainer(
            strategy=RexStrategy(session),
            accelerator="cpu",
            max_epochs=EPOCHS,
            gradient_clip_val=5.0,
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=CSVLogger(out),
            callbacks=[ModelCheckpoint(out, monitor="valid_loss"), *stop],
            log_every_n_steps=10,
        )
        trainer.fit(module, data, DataLoader(Points(), batch_size=64))
        rate = module.trainer.optimizers[0].param_groups[0]["lr"]
        module.notes.end(module, validations=module.validations, steps=module.steps, last_rate=rate)


if __name__ == "__main__":
    main()
