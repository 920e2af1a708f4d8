"""Mixed precision with float16: torch's gradient scaler, one decision per step on all workers.

A scaler multiplies the loss, so that small gradients survive float16, and skips an update whose gradients overflowed.
What it looks at here is the step's averaged gradient, the same on all workers: they skip together and keep one scale.
In the middle of a step, and for a void one, its calls do nothing, like the optimiser's.

What is reported is of the unscaled loss. A skipped step has used its samples, as it would have in one process.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from rex_worker.errors import UsageError
from rex_worker.gate import StepGate
from rex_worker.optimizer import ElasticOptimizer


class ElasticScaler:
    """Stands for a ``torch.amp.GradScaler`` in the loop; what it does not name itself is the wrapped one's."""

    def __init__(self, inner: torch.amp.GradScaler, optimizer: ElasticOptimizer, gate: StepGate) -> None:
        self._inner = inner
        self._optimizer = optimizer
        self._gate = gate
        self._scaled: weakref.ref[Tensor] | None = None
        self._raw: Tensor | None = None
        self._unscaled = False
        optimizer.updates_through("scaler.step(optimizer)")

    def scale(self, outputs: Any) -> Any:
        """Multiply the loss; the result goes into ``session.backward`` as it is."""
        scaled = self._inner.scale(outputs)
        if isinstance(outputs, Tensor):
            self._scaled, self._raw = weakref.ref(scaled), outputs.detach()
        return scaled

    def raw(self, loss: Tensor) -> Tensor:
        """Return the loss before it was scaled. Raises ``UsageError`` for a loss that was not."""
        if self._scaled is None or self._raw is None or self._scaled() is not loss:
            raise UsageError(
                "with a GradScaler in session.prepare call session.backward(scaler.scale(loss)), directly on what scale"
                " returns; do sums and divisions before"
            )
        return self._raw

    def unscale_(self, optimizer: Any) -> None:
        """Divide the step's averaged gradients by the scale, once, to read or clip them before ``step``."""
        self._check(optimizer)
        if self._gate.take_update():
            self.unscale_once()

    def unscale_once(self) -> None:
        """Unscale the averaged gradients unless that was done."""
        if not self._unscaled:
            self._unscaled = True
            self._inner.unscale_(self._optimizer.inner)

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Update the parameters unless gradients overflowed, at the end of a step that the group completed."""
        self._check(optimizer)
        if args or kwargs:
            raise UsageError("scaler.step(optimizer) takes nothing else under REX: the optimiser runs no closure")
        self._optimizer.update_by(self._inner.step)

    def update(self, new_scale: Any = None) -> None:
        """Adapt the scale, once per update."""
        if self._gate.may_schedule():
            self._inner.update(new_scale)
            self._unscaled = False

    def state_dict(self) -> dict[str, Any]:
        """State of the wrapped scaler; part of the training state."""
        return self._inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the wrapped scaler."""
        self._inner.load_state_dict(state_dict)

    def _check(self, optimizer: Any) -> None:
        if optimizer is not self._optimizer:
            raise UsageError("the scaler was prepared together with an optimizer: give it the one from session.prepare")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
