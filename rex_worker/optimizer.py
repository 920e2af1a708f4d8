"""The optimiser as the script sees it: one call per batch, one update per step.

The plan may cut a step into several micro-batches, a step may be void because a peer was lost, and the learning rate
follows the global batch. None of that shows in the training loop: ``zero_grad`` and ``step`` do nothing in the
middle of a step, and each update runs at base rate x plan factor, set for the update and taken back after it. What a
scheduler or the script finds in ``param_groups`` is always the base rate, so repeated plan changes and resumes
cannot compound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from rex_worker.errors import UsageError
from rex_worker.gate import StepGate


class ElasticOptimizer(Optimizer):
    """Wraps a torch optimiser; shares its state and groups, and can be given to any torch scheduler."""

    def __init__(self, inner: Optimizer, gate: StepGate) -> None:
        # The base class's own initialisation would make a second set of groups.
        self._inner = inner
        self._gate = gate
        self._updated_through: str | None = None
        self._optimizer_step_pre_hooks = inner._optimizer_step_pre_hooks
        self._optimizer_step_post_hooks = inner._optimizer_step_post_hooks

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The optimiser's state by parameter."""
        return self._inner.state

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The parameter groups; ``lr`` is the base rate."""
        return self._inner.param_groups

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The settings that the optimiser was made with."""
        return self._inner.defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: parameters that join later are not averaged."""
        raise UsageError("add parameter groups before session.prepare; a group that joins later would not be averaged")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, unless the step in flight has gathered some."""
        if self._gate.may_clear():
            self._inner.zero_grad(set_to_none)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the parameters, if this was the step's last micro-batch and the group completed the step."""
        if closure is not None:
            raise UsageError("optimizer.step(closure) runs the model by itself; use an optimiser without a closure")
        if self._updated_through is not None:
            raise UsageError(f"the gradients are scaled: call {self._updated_through} in place of optimizer.step()")
        self.update_by(_step)
        return None

    def update_by(self, update: Callable[[Optimizer], Any]) -> None:
        """Let ``update`` act on the wrapped optimiser where ``step`` would."""
        if self._gate.take_update():
            with scaled_rates(self._inner, self._gate.learning_rate_factor):
                update(self._inner)
            self._gate.updated()

    def updates_through(self, call: str) -> None:
        """From now on only ``call`` may update."""
        self._updated_through = call

    @property
    def inner(self) -> Optimizer:
        """The wrapped optimiser."""
        return self._inner

    def state_dict(self) -> dict[str, Any]:
        """State of the wrapped optimiser, with base rates."""
        return self._inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the wrapped optimiser."""
        self._inner.load_state_dict(state_dict)

    def __repr__(self) -> str:
        return f"ElasticOptimizer({self._inner!r})"

    def __getstate__(self) -> dict[str, Any]:
        raise UsageError("keep optimizer.state_dict(), not the optimiser itself")


class ElasticScheduler:
    """Wraps a torch scheduler: it stands where it would after as many samples in batches of the initial size.

    A call inside the loop counts only after an applied update, and then for as many steps as the update's samples are
    worth: with twice the batch two, with half of it none or one. With ``by_updates``, and for a call with arguments
    (a metric, a position), it counts once. Between epochs a call is a call.
    """

    def __init__(self, inner: Any, gate: StepGate, *, by_updates: bool = False) -> None:
        self._inner = inner
        self._gate = gate
        self._by_updates = by_updates

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Move the schedule on, where the loop has made an update (or an epoch)."""
        if not self._gate.may_schedule():
            return
        once = self._by_updates or args or kwargs
        for _ in range(1 if once else self._gate.schedule_steps()):
            self._inner.step(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _step(optimizer: Optimizer) -> None:
    optimizer.step()


@contextmanager
def scaled_rates(optimizer: Optimizer, factor: float) -> Iterator[None]:
    """Let the optimiser's rates be ``factor`` times the base rates for the time of the block.

    A rate that is a tensor stays the same tensor: a captured graph reads it where it lies. One that is None is the
    optimiser's own business.
    """
    if factor == 1.0:
        yield
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    tensors = {id(rate): rate for rate in rates if isinstance(rate, Tensor)}
    bases = {key: rate.clone() for key, rate in tensors.items()}
    for rate in tensors.values():
        rate.mul_(factor)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if rate is not None and not isinstance(rate, Tensor):
            group["lr"] = rate * factor
    try:
        yield
    finally:
        for key, rate in tensors.items():
            rate.copy_(bases[key])
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
