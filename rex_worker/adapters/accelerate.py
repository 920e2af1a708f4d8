"""A REX session with the face of Accelerate's ``Accelerator``.

    with Accelerator() as accelerator:
        model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
        for epoch in accelerator.epochs(10):
            for x, y in loader:
                with accelerator.accumulate(model):
                    optimizer.zero_grad()
                    accelerator.backward(loss_fn(model(x), y))
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    scheduler.step()

A loop that was written for Accelerate keeps its lines, but for ``range(10)``, which becomes ``accelerator.epochs(10)``:
a worker may join in the middle, and only the session knows in which epoch. Needs nothing of the ``accelerate`` package.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

import rex_worker
from rex_worker.errors import UsageError
from rex_worker.session import Session

log = logging.getLogger("rex")

_TYPES = {"no": None, "bf16": torch.bfloat16}


class Accelerator:
    """Accelerate's calls, carried out by a session; what REX decides itself is refused or said.

    Args:
        session: The session; a new one (``rex_worker.init()``) if absent, which ends with this object's ``with`` block.
        mixed_precision: ``"no"`` or ``"bf16"`` (for ``autocast`` and what ``prepare`` makes of the model's forward).
        gradient_accumulation_steps: Multiplies the loader's batch; how it is cut into passes is the plan's.
    """

    def __init__(
        self,
        session: Session | None = None,
        *,
        mixed_precision: str = "no",
        gradient_accumulation_steps: int = 1,
        **others: Any,
    ) -> None:
        if mixed_precision not in _TYPES:
            raise UsageError(f"mixed_precision is {mixed_precision!r}; this accelerator knows 'no' and 'bf16'")
        if others:
            raise UsageError(
                f"Accelerator({', '.join(sorted(others))}): not known here; REX decides it, or leave it out"
            )
        if gradient_accumulation_steps < 1:
            raise UsageError("gradient_accumulation_steps must be at least 1")
        self.session = session or rex_worker.init()
        self._low = _TYPES[mixed_precision]
        self._passes = gradient_accumulation_steps
        self._models: list[nn.Module] = []
        self._loads = False

    def __enter__(self) -> Self:
        self.session.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.session.__exit__(kind, error, trace)

    # --- the loop ---------------------------------------------------------------------------------------------------

    def prepare(self, *given: Any) -> Any:
        """Take a model, its optimiser, the training ``DataLoader`` and a scheduler; returns them in the order given.

        The first ``DataLoader`` is the one to train on. Others come back as they are: every worker evaluates all.
        """
        models = [one for one in given if isinstance(one, nn.Module)]
        optimizers = [one for one in given if isinstance(one, Optimizer)]
        loaders = [one for one in given if isinstance(one, DataLoader)]
        schedulers = [one for one in given if one not in models + optimizers + loaders]
        for what, found, most in (
            ("model", models, 1),
            ("optimizer", optimizers, 1),
            ("scheduler", schedulers, 1),
        ):
            if len(found) > most:
                raise UsageError(f"accelerator.prepare: {len(found)} of kind {what}; a session trains one model")
        if bool(models) != bool(optimizers) or (schedulers and not models):
            raise UsageError("accelerator.prepare: give the model, its optimizer and its scheduler in one call")
        taken: dict[int, Any] = {}
        if models:
            prepared: Any = self.session.prepare(models[0], optimizers[0], *schedulers)
            taken |= dict(zip(map(id, [models[0], optimizers[0], *schedulers]), prepared, strict=True))
            self._models = [models[0]]
            if self._low is not None:
                self._let_cast(models[0])
        if loaders and not self._loads:
            self._loads = True
            batch = loaders[0].batch_size
            if batch is None:
                raise UsageError("accelerator.prepare: the loader has a batch sampler of its own; give it a batch_size")
            taken[id(loaders[0])] = self.session.loader(loaders[0], batch * self._passes)
        results = tuple(taken.get(id(one), one) for one in given)
        return results[0] if len(results) == 1 else results

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the epochs that are left; takes the place of ``range(count)``."""
        return self.session.epochs(count)

    def backward(self, loss: Tensor, weight: float | Tensor | None = None) -> None:
        """Run the backward pass of ``loss``, the mean over the batch at hand; see ``Session.backward``."""
        self.session.backward(loss, weight)

    def accumulate(self, *models: nn.Module) -> AbstractContextManager[None]:
        """Nothing: prepared optimisers know by themselves when a step is whole."""
        return nullcontext()

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        """Nothing: gradients travel with a step's last batch only."""
        return nullcontext()

    @property
    def sync_gradients(self) -> bool:
        """Whether the batch at hand was its step's last: gradients are averaged, and ``optimizer.step()`` updates."""
        return self.session.gradients_ready

    def clip_grad_norm_(self, parameters: Iterable[Tensor] | Tensor, max_norm: float, norm_type: float = 2) -> None:
        """Clip the averaged gradients of the whole model; does nothing before a step's last batch."""
        if norm_type != 2:
            raise UsageError("accelerator.clip_grad_norm_: only the 2-norm is supported")
        given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        whole = {id(parameter) for model in self._models for parameter in model.parameters()}
        if {id(parameter) for parameter in given} != whole:
            raise UsageError("accelerator.clip_grad_norm_: give model.parameters(); parts are not clipped apart")
        self.session.clip_gradients(max_norm)

    def autocast(self) -> AbstractContextManager[Any]:
        """Compute in ``mixed_precision`` within the block."""
        kind = self.device.type
        return nullcontext() if self._low is None else torch.autocast(kind, dtype=self._low)

    def _let_cast(self, model: nn.Module) -> None:
        forward = model.forward

        def cast(*args: Any, **kwargs: Any) -> Any:
            with self.autocast():
                return forward(*args, **kwargs)

        model.forward = cast

    # --- beside the loop --------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where model and batches live."""
        return self.session.device

    @property
    def num_processes(self) -> int:
        """Workers in the present group; it may change at any step."""
        return self.session.world_size

    @property
    def process_index(self) -> int:
        """Place in the present group; it may change at any step."""
        return self.session.rank

    @property
    def is_main_process(self) -> bool:
        """Whether this is the group's rank 0."""
        return self.session.is_main

    is_local_main_process = is_main_process

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on rank 0."""
        if self.is_main_process:
            print(*args, **kwargs)  # noqa: T201 - what was asked for

    def on_main_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Let ``function`` run on rank 0 only."""

        def only_there(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if self.is_main_process else None

        return only_there

    def log(self, values: dict[str, float], step: int | None = None, **kwargs: Any) -> None:
        """Report figures, up to 16 at once."""
        self.session.report(**values)

    def unwrap_model(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        """Return the model, which was never wrapped."""
        return model

    def gather_for_metrics(self, values: Any, **kwargs: Any) -> Any:
        """Return ``values``: evaluation loaders are not split, so every worker has all of them already."""
        return values

    def wait_for_everyone(self) -> None:
        """Nothing: workers meet at each step; rank 0 may write files while the others wait at the next."""

    def end_training(self) -> None:
        """Nothing: the session ends with its ``with`` block."""

    def save(self, thing: Any, file: Any, **kwargs: Any) -> None:
        """Save with torch on rank 0."""
        if self.is_main_process:
            torch.save(thing, file)

    def stop(self) -> None:
        """End the training early, on all workers, after the next step."""
        self.session.stop()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        remedy = _INSTEAD.get(name, "see docs/worker.md for what there is")
        raise UsageError(f"accelerator.{name} is not supported on REX: {remedy}")


_INSTEAD = {
    "gather": "use session.totals for sums over an evaluation set",
    "reduce": "use session.totals for sums over an evaluation set",
    "clip_grad_value_": "use clip_grad_norm_",
    "save_state": "REX keeps checkpoints by itself (spec.checkpoint, or REX_CHECKPOINT_DIR)",
    "load_state": "REX resumes by itself from its checkpoints",
    "skip_first_batches": "REX resumes by itself, in the middle of an epoch too",
    "set_trigger": "call stop(), which ends the training on all workers",
    "check_trigger": "call stop(), which ends the training on all workers",
}
