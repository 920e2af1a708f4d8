"""A tiny GPT-2 from scratch under Hugging Face's Trainer. OUT: where the Trainer writes."""

from __future__ import annotations

import os
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments

import rex_worker as rex
from rex_worker.adapters.transformers import ElasticTrainer
from tests.worker.adapters.notes import EPOCHS, LENGTH, WORDS, Notes, Sentences


class Noted(ElasticTrainer):
    notes: Notes

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        ids = inputs["input_ids"]
        self.notes.batch((ids[:, 0] * WORDS + ids[:, 1]).tolist())
        return super().training_step(model, inputs, num_items_in_batch)


class NoteSteps(TrainerCallback):
    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def on_step_end(self, *about: Any, **more: Any) -> None:
        self.notes.applied()
        _, state, control = about
        control.should_training_stop |= state.global_step == 15 and "STOP" in os.environ


def main() -> None:
    torch.manual_seed(os.getpid())
    config = GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    with rex.init() as session:
        notes = Notes(session)
        args = TrainingArguments(
            output_dir=os.environ["OUT"],
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=16,
            learning_rate=3e-3,
            warmup_steps=3,
            logging_steps=5,
            eval_strategy="epoch",
            save_steps=40,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        model = GPT2LMHeadModel(config)
        trainer = Noted(
            session,
            model=model,
            args=args,
            train_dataset=Sentences(),
            eval_dataset=Sentences(),
            callbacks=[NoteSteps(notes)],
        )
        trainer.notes = notes
        trainer.train()
        trainer.save_model(os.environ["OUT"] + "/final")
        history = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
        notes.end(model, steps=trainer.state.global_step, planned=trainer.state.max_steps, evaluations=history)


if __name__ == "__main__":
    main()
