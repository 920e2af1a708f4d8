"""Hugging Face's Trainer on a REX session.

    with rex.init() as session:
        trainer = ElasticTrainer(session, model=model, args=args, train_dataset=dataset)
        trainer.train()

The Trainer counts on a fixed number of equal batches per epoch, and keeps its own distributed state. Here the loop over
an epoch is REX's: as many batches as the plans make of it, a step whenever one was applied. What people use around it
stays: arguments, callbacks, logging, evaluation, saving.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainingArguments

from rex_worker.errors import UsageError
from rex_worker.session import Session


class ElasticTrainer(Trainer):
    """A ``Trainer`` whose batches, accumulation and workers are the session's.

    ``per_device_train_batch_size`` x ``gradient_accumulation_steps`` is the batch that each process asks for where no
    job says another; ``num_train_epochs`` and ``max_steps`` are kept in samples, so that a larger batch makes fewer
    updates. Every worker evaluates the whole evaluation set and comes to the same result; rank 0 saves.
    """

    def __init__(self, session: Session, *args: Any, **kwargs: Any) -> None:
        self._session = session  # asked for already while the Trainer is made
        super().__init__(*args, **kwargs)
        if not hasattr(Trainer, "_run_epoch"):
            raise UsageError("this version of transformers is too old for the ElasticTrainer; it needs 5.20 or later")
        _check(self.args, session)
        self._script_batch = self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps
        self._epochs: Iterator[int] | None = None
        self._epoch = -1
        self._weight: Any = None
        self._optimizer: Any = None
        self._scheduler: Any = None
        self.accelerator.backward = self._backward

    # --- before the first step --------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> Any:
        """Return the session's loader over ``train_dataset``."""
        dataset: Any = self.train_dataset
        if not hasattr(dataset, "__len__"):
            raise UsageError("the ElasticTrainer needs a train_dataset with __len__ and __getitem__")
        args = self.args
        return self._session.loader(
            dataset,
            self._script_batch,
            collate=self._get_collator_with_removed_columns(self.data_collator, description="Training"),
            shuffle=args.train_sampling_strategy != "sequential",
            num_workers=args.dataloader_num_workers,
        )

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        if resume_from_checkpoint is not None:
            raise UsageError(
                "resume_from_checkpoint: REX resumes by itself from its own checkpoints (spec.checkpoint of the job, or"
                " REX_CHECKPOINT_DIR); leave it out"
            )
        self.create_optimizer_and_scheduler(max_steps)
        model = self.accelerator.prepare_model(self.model, device_placement=False)
        optimizer: Any = self.optimizer
        prepared: Any = self._session.prepare(model, optimizer, self.lr_scheduler)
        model, self._optimizer, self._scheduler = prepared
        self.optimizer, self.lr_scheduler = self._optimizer, self._scheduler
        self.model_wrapped = model
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
        self.callback_handler.train_dataloader = train_dataloader
        return model, train_dataloader

    # --- an epoch ---------------------------------------------------------------------------------------------------

    def _run_epoch(  # type: ignore[override] # takes what it needs by name
        self, model: torch.nn.Module, epoch: int, train_dataloader: Any, **about: Any
    ) -> None:
        """Train what is left of ``epoch``; nothing, if the group is past it."""
        if not self._arrives_at(epoch):
            return
        begins = True
        for inputs in train_dataloader:
            if begins:
                self.control = self.callback_handler.on_step_begin(self.args, self.state, self.control)
            begins = self._micro_step(model, inputs)
            if begins:
                self._updated(model, epoch, about)
            else:
                self.control = self.callback_handler.on_substep_end(self.args, self.state, self.control)
            if self.control.should_epoch_stop:
                raise UsageError(
                    "a callback ended an epoch early; the other workers would not: end the training instead"
                )
            if self.control.should_training_stop:
                self._session.stop()
        self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
        self._tell(model, epoch, about)

    def _arrives_at(self, epoch: int) -> bool:
        if self._epochs is None:
            self._epochs = self._session.epochs(math.ceil(self.state.num_train_epochs))
        if self._epoch < epoch:
            self._epoch = next(self._epochs, -1)
            self.state.is_world_process_zero = self.state.is_local_process_zero = self._session.is_main
        if self._epoch < 0:
            self.control.should_training_stop = True
        return self._epoch == epoch

    def _micro_step(self, model: torch.nn.Module, inputs: Any) -> bool:
        """Forward and backward over one micro-batch, and the update after a step's last one; tells if there was one."""
        session, before = self._session, self._session.step
        self._optimizer.zero_grad()
        self._weight = self._get_num_items_in_batch([inputs], self.args.device)
        self.current_gradient_accumulation_steps = 1
        self.training_step(model, inputs, self._weight)
        self.current_flos += self.floating_point_ops(inputs)
        self._track_num_input_tokens(inputs)  # type: ignore[no-untyped-call]
        if session.gradients_ready:
            if self.args.max_grad_norm:
                session.clip_gradients(self.args.max_grad_norm)
            self.control = self.callback_handler.on_pre_optimizer_step(self.args, self.state, self.control)
        self._optimizer.step()
        if session.step == before:
            return False
        self.control = self.callback_handler.on_optimizer_step(self.args, self.state, self.control)
        return True

    def _backward(self, loss: Tensor, **kwargs: Any) -> None:
        self._session.backward(loss, self._weight)

    def _updated(self, model: torch.nn.Module, epoch: int, about: dict[str, Any]) -> None:
        session, state = self._session, self.state
        rate = self._get_learning_rate()
        if self.args.lr_scheduler_type != "reduce_lr_on_plateau":  # that one moves on with an evaluation
            self._scheduler.step()
        self._tr_loss += session.loss
        done = session.progress
        if self.args.max_steps > 0:
            done = min(1.0, session.samples / (self.args.max_steps * session.initial_batch))
        state.global_step = session.step
        state.epoch = session.progress * state.num_train_epochs
        state.max_steps = session.step if done >= 1.0 else max(session.step + 1, round(session.step / done))
        state.is_world_process_zero = state.is_local_process_zero = session.is_main
        self.control = self.callback_handler.on_step_end(self.args, state, self.control)
        self._tell(model, epoch, about, rate)

    def _tell(self, model: torch.nn.Module, epoch: int, about: dict[str, Any], rate: float | None = None) -> None:
        self._maybe_log_save_evaluate(
            self._tr_loss,
            None,
            model,
            about["trial"],
            epoch,
            about["ignore_keys_for_eval"],
            about["start_time"],
            learning_rate=rate,
        )

    # --- who speaks for all -----------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as ever, and report the figures to REX."""
        super().log(logs, start_time)
        self._session.report(
            **{name: value for name, value in list(logs.items())[:16] if isinstance(value, int | float)}
        )

    def is_world_process_zero(self) -> bool:
        """Whether this is the group's rank 0."""
        return self._session.is_main

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save on rank 0; elsewhere do nothing."""
        if self._session.is_main:
            super().save_model(output_dir, _internal_call)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        if self._session.is_main:
            super()._save_checkpoint(model, trial)


def _check(args: TrainingArguments, session: Session) -> None:
    """Refuse what would be ignored or wrong."""
    asked = {
        "fp16": (args.fp16, "use bf16=True, or the five lines with a gradient scaler"),
        "deepspeed": (args.deepspeed, "leave it out"),
        "fsdp": (args.fsdp, "leave it out; session.prepare(shard=...) shards models in the five lines"),
        "auto_find_batch_size": (args.auto_find_batch_size, "leave it out; REX finds the batch"),
        "train_sampling_strategy": (
            args.train_sampling_strategy not in ("random", "sequential"),
            "use 'random' or 'sequential'",
        ),
        "num_train_epochs": (args.num_train_epochs % 1, "give a whole number"),
    }
    for name, (given, remedy) in asked.items():
        if given:
            raise UsageError(f"TrainingArguments.{name} is not for the ElasticTrainer: {remedy}")
    if args.world_size > 1:
        raise UsageError(
            "transformers has formed a process group of its own; import rex_worker.adapters.transformers before"
            " rex.init(), and make the TrainingArguments after it"
        )
    if args.n_gpu > 1 or (args.device.type, args.device.index or 0) != (session.device.type, session.device.index or 0):
        raise UsageError(
            f"the Trainer would use {args.device} of {args.n_gpu}, the session {session.device}; show each process its"
            " own GPU only (torchrun --virtual-local-rank does)"
        )
