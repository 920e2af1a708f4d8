"""Lightning's Trainer on a REX session.

    with rex.init() as session:
        trainer = Trainer(strategy=RexStrategy(session), max_epochs=10)
        trainer.fit(module, DataLoader(dataset, batch_size=32, shuffle=True))

Lightning believes that it trains in one process; batches, averaging and updates are the session's. One batch of
Lightning's is one optimiser step here, with all of its micro-batches and attempts, so that ``global_step``, schedulers
and callbacks count updates, the same on every worker.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loops.optimization.automatic import _AutomaticOptimization
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from rex_worker.errors import UsageError
from rex_worker.loader import ElasticLoader
from rex_worker.session import Session


class RexStrategy(SingleDeviceStrategy):
    """Give it to the Trainer; the module, its data and its callbacks stay as they are.

    ``max_epochs`` must be given. Each worker validates on all validation data and comes to the same result; rank 0
    saves and logs. Only automatic optimisation with one optimiser and at most one scheduler.
    """

    strategy_name = "rex"

    def __init__(self, session: Session) -> None:
        super().__init__(session.device)
        self.session = session
        self._steps: _Steps | None = None
        self._show_rank()

    # --- before the first step --------------------------------------------------------------------------------------

    def setup_optimizers(self, trainer: Trainer) -> None:
        """Let the session take the module and its optimiser."""
        module = self._checked(trainer)
        super().setup_optimizers(trainer)
        if len(self.optimizers) != 1 or len(self.lr_scheduler_configs) > 1:
            raise UsageError("RexStrategy: configure_optimizers must return one optimizer and at most one scheduler")
        schedules = [config.scheduler for config in self.lr_scheduler_configs]
        prepared: Any = self.session.prepare(module, self.optimizers[0], *schedules)
        self.optimizers = [prepared[1]]
        for config, schedule in zip(self.lr_scheduler_configs, prepared[2:], strict=True):
            config.scheduler = schedule

    def _checked(self, trainer: Trainer) -> LightningModule:
        module = self.lightning_module
        if module is None or not module.automatic_optimization:
            raise UsageError("RexStrategy needs automatic optimization; with a loop of your own use the five lines")
        for name, wrong, remedy in (
            ("accumulate_grad_batches", trainer.accumulate_grad_batches != 1, "leave it out; it is the plan's"),
            ("max_steps", trainer.max_steps != -1, "use max_epochs; how many steps they take is the plan's"),
            ("max_epochs", trainer.max_epochs is None or trainer.max_epochs < 1, "give a number of at least 1"),
            ("limit_train_batches", trainer.limit_train_batches != 1.0, "leave it out, and make the dataset smaller"),
            (
                "reload_dataloaders_every_n_epochs",
                vars(trainer).get("reload_dataloaders_every_n_epochs"),
                "leave it out",
            ),
        ):
            if wrong:
                raise UsageError(f"Trainer({name}=...) cannot be kept under RexStrategy: {remedy}")
        if isinstance(self.precision_plugin, MixedPrecision) and self.precision_plugin.scaler is not None:
            raise UsageError("Trainer(precision='16-mixed') cannot be kept under RexStrategy: use 'bf16-mixed'")
        return module

    def process_dataloader(self, dataloader: object) -> object:
        """Have the session make the training batches; other loaders stay as they are."""
        module = self.lightning_module
        if module is None or module.trainer.state.stage != RunningStage.TRAINING:
            return dataloader
        if not isinstance(dataloader, DataLoader):
            raise UsageError("RexStrategy needs one torch DataLoader to train on")
        self._steps = _Steps(module.trainer, self.session, self.session.loader(dataloader))
        return _Feed(self._steps)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Refuse to resume from Lightning's checkpoints; read them for anything but training."""
        module = self.lightning_module
        if module is not None and module.trainer.state.fn == TrainerFn.FITTING:
            raise UsageError("fit(ckpt_path=...): REX resumes by itself (spec.checkpoint, or REX_CHECKPOINT_DIR)")
        return super().load_checkpoint(checkpoint_path, weights_only)

    # --- the steps --------------------------------------------------------------------------------------------------

    def on_train_start(self) -> None:
        """Join the group, and begin where it stands."""
        if self._steps is not None:
            self._steps.begin()
            self._show_rank()

    def backward(self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any) -> Tensor:
        """Run the backward pass through the session."""
        module = self.lightning_module
        if module is None:
            raise UsageError("RexStrategy.backward belongs inside Trainer.fit")
        loss = self.precision_plugin.pre_backward(closure_loss, module)
        self.session.backward(loss)
        return self.precision_plugin.post_backward(loss, module)

    def optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any],
        model: LightningModule | nn.Module | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run one micro-batch, and update after a step's last one."""
        result = closure()
        if self.session.gradients_ready and self.lightning_module is not None:
            self.precision_plugin._after_closure(self.lightning_module, optimizer)
            self._show_rank()
        optimizer.step()
        return result

    def on_train_end(self) -> None:
        """Whoever wants to stop early stops with all others, which takes one more step."""
        if self._steps is not None:
            self._steps.end_together()

    # --- who speaks for all -----------------------------------------------------------------------------------------

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the group's rank 0."""
        return self.session.is_main

    def _show_rank(self) -> None:
        rank_zero_only.rank = 0 if self.session.is_main else max(1, self.session.rank)  # type: ignore[attr-defined]


class _Steps(_AutomaticOptimization):
    """Takes the place of Lightning's own way with a batch: goes on until the session has applied a step."""

    def __init__(self, trainer: Trainer, session: Session, loader: ElasticLoader) -> None:
        super().__init__(trainer)
        self._session, self._loader = session, loader
        self._epochs: Iterator[int] = iter(())
        self._epoch: int | None = None
        self._batches: Iterator[Any] = iter(())

    def begin(self) -> None:
        loops = self.trainer.fit_loop
        loops.epoch_loop.automatic_optimization = self
        self._epochs = self._session.epochs(self.trainer.max_epochs or 1)
        self._open_epoch()
        fetcher: Any = loops._data_fetcher
        fetcher.prefetch_batches = 0  # the next batch depends on what becomes of this one
        if self.trainer.current_epoch == 0:
            iter(fetcher)  # Lightning does this for all epochs but the first
        self._count()

    def _open_epoch(self) -> None:
        """Go on to the next epoch that the group trains, which for a newcomer may be any."""
        self._epoch = next(self._epochs, None)
        if self._epoch is None:
            self.trainer.should_stop = True
            return
        progress: Any = self.trainer.fit_loop.epoch_progress.current
        if progress.processed != self._epoch:
            progress.ready = progress.started = progress.processed = progress.completed = self._epoch

    def batches(self) -> Iterator[Any]:
        """Yield the first batch of each step of an epoch."""
        if self._session.step and self._epoch is not None and self._session.epoch > self._epoch:
            self._open_epoch()
        if self._epoch is None:
            return
        self._batches = iter(self._loader)
        yield from self._batches
        self._notice_the_end()

    def _notice_the_end(self) -> None:
        """A loader that ends within an epoch tells that a worker has ended the training for all."""
        if self._session.epoch == self._epoch:
            self._epoch = None
            self.trainer.should_stop = True

    def end_together(self) -> None:
        """After an early stop: take the step in which all workers agree to it."""
        if self._epoch is None or self._session.epoch >= (self.trainer.max_epochs or 1):
            return
        self._session.stop()
        batch = next(self._batches, None)
        if batch is None:
            self._open_epoch()
            self._batches = iter(self._loader)
            batch = next(self._batches, None)
        if batch is not None:
            kwargs = self.trainer.fit_loop.epoch_loop._build_kwargs(OrderedDict(), self._on_device(batch), 0)
            output = self.run(self.trainer.optimizers[0], 0, kwargs)
            call._call_callback_hooks(self.trainer, "on_train_batch_end", output, batch, 0)
            call._call_lightning_module_hook(self.trainer, "on_train_batch_end", output, batch, 0)
            next(self._batches, None)

    def run(self, optimizer: Optimizer, batch_idx: int, kwargs: OrderedDict[str, Any]) -> dict[str, Any]:
        """Take one step, whatever it takes."""
        before = self._session.step
        output: dict[str, Any] = super().run(optimizer, batch_idx, kwargs)
        while self._session.step == before:
            batch = next(self._batches, None)
            if batch is None:
                self._notice_the_end()
                raise StopIteration
            kwargs["batch"] = self._on_device(batch)
            output = super().run(optimizer, batch_idx, kwargs)
        self._count()
        if self._session.epoch != self._epoch:
            next(self._batches, None)  # lets the session know that the loop over the epoch is done
            self.trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = True
        return output

    def _on_device(self, batch: Any) -> Any:
        module, strategy = self.trainer.lightning_module, self.trainer.strategy
        batch = self.trainer.precision_plugin.convert_input(batch)
        return strategy.batch_to_device(module._on_before_batch_transfer(batch, dataloader_idx=0), dataloader_idx=0)

    def _count(self) -> None:
        total = self.optim_progress.optimizer.step.total
        total.ready = total.completed = self._session.step


class _Feed:
    """What Lightning iterates, once per epoch. Before the training begins it is empty: nothing is read ahead."""

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps

    def __iter__(self) -> Iterator[Any]:
        return self._steps.batches()
