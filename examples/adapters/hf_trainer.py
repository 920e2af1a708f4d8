"""Hugging Face's Trainer on REX: a tiny GPT-2 learns, from scratch, to count."""

import os

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

import rex_worker as rex
from rex_worker.adapters.transformers import ElasticTrainer

WORDS, LENGTH = 64, 16


class Counting(Dataset[dict[str, Tensor]]):
    """Sequences that count on from somewhere, in steps of 1 to 4."""

    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        starts = torch.randint(WORDS, (size, 1), generator=generator)
        steps = torch.randint(1, 5, (size, 1), generator=generator)
        self.rows = (starts + steps * torch.arange(LENGTH)) % WORDS

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def main() -> None:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    with rex.init() as session:
        args = TrainingArguments(
            output_dir="runs/hf-trainer",
            num_train_epochs=int(os.environ.get("EPOCHS", "5")),
            per_device_train_batch_size=32,
            learning_rate=2e-3,
            lr_scheduler_type="cosine",
            logging_steps=20,
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",
        )
        trainer = ElasticTrainer(
            session,
            model=GPT2LMHeadModel(config),
            args=args,
            train_dataset=Counting(4000, seed=1),
            eval_dataset=Counting(500, seed=2),
        )
        trainer.train()
        trainer.save_model("runs/hf-trainer/model")


if __name__ == "__main__":
    main()
