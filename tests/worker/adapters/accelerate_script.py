"""A tiny network under the Accelerator's interface. OUT: folder that rank 0 writes into."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

from rex_worker.adapters.accelerate import Accelerator
from tests.worker.adapters.notes import EPOCHS, Notes, Points, small_net


def main() -> None:
    model = small_net()
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = torch.utils.data.DataLoader(Points(), batch_size=8, shuffle=True)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.2, total_iters=60)
    with Accelerator(gradient_accumulation_steps=2) as accelerator:
        notes = Notes(accelerator.session)
        model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
        for epoch in accelerator.epochs(EPOCHS):
            for index, x, y in loader:
                before = accelerator.session.step
                with accelerator.accumulate(model):
                    optimizer.zero_grad()
                    notes.batch(index.tolist())
                    accelerator.backward(nn.functional.mse_loss(model(x), y))
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 5.0)
                    optimizer.step()
                    scheduler.step()
                if accelerator.session.step > before:
                    notes.applied()
                if accelerator.session.step == 15 and "STOP" in os.environ:
                    accelerator.stop()
            accelerator.wait_for_everyone()
            accelerator.print(f"epoch {epoch} of {accelerator.num_processes} workers")
            if accelerator.is_main_process:
                Path(os.environ["OUT"]).mkdir(exist_ok=True)
            accelerator.save(accelerator.unwrap_model(model).state_dict(), os.environ["OUT"] + "/model.pt")
        notes.end(model)


if __name__ == "__main__":
    main()
