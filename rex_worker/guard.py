"""A forward pass that runs out of memory, and a script that goes on nevertheless.

The group must learn that a worker cannot do its part of a step, and it learns it in the exchange behind the backward
pass. The script, however, is in the middle of its loop: an error out of ``model(x)`` would end it, and with it the
worker. So the guard, which stands in place of the model's ``forward``, answers with something of the right shape,
made of the outputs for a few of the batch's samples. Nobody learns from it: ``session.backward`` finds the step marked
as unfit, computes nothing, and all workers take the step again, this one in smaller passes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from rex_worker.devices import release_memory
from rex_worker.errors import first_line
from rex_worker.memory import Meter, is_out_of_memory, is_scarce

_FEW = 2
"""Samples that the stand-in is made of (one alone upsets batch norm)."""

T = TypeVar("T")


class Passes(Protocol):
    """What the guard must know of the training."""

    def in_hand(self) -> int:
        """Samples of the batch whose forward and backward pass are under way; 0 outside of a step."""

    def admit(self) -> None:
        """Raise an emulated device's out-of-memory error when the batch in hand would not fit."""

    def is_unfit(self) -> bool:
        """Whether memory did not suffice for the step at hand."""

    def ran_out(self, message: str) -> None:
        """Memory did not suffice for the batch in hand: the step must not count."""


class Call:
    """One call of ``forward`` that can be made again, with another number of samples and under the same precision."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], samples: int, device: torch.device) -> None:
        self._args, self._kwargs = args, kwargs
        self.samples = samples
        self._kind = device.type
        self._dtype = torch.get_autocast_dtype(device.type)
        self._mixed = torch.is_autocast_enabled(device.type)

    def again(self, forward: Callable[..., T], samples: int) -> T:
        """Call ``forward`` on so many samples, the recorded ones over and over."""
        args, kwargs = resized((self._args, self._kwargs), self.samples, samples)
        with self._precision():
            return forward(*args, **kwargs)

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self._kind, dtype=self._dtype, enabled=self._mixed)


class ForwardGuard:
    """Stands in place of ``model.forward``. A copy of the model, deep or pickled, gets the model's own one back."""

    def __init__(self, model: torch.nn.Module, device: torch.device, meter: Meter) -> None:
        self.model = model
        self.forward: Callable[..., Any] = model.forward
        self._device = device
        self._meter = meter
        self.passes: Passes | None = None
        """Set when the training begins."""
        self.recording = False
        self.recorded: Call | None = None
        """The newest call that was made while ``recording``."""
        self.__wrapped__ = self.forward  # whoever asks for the arguments of forward gets to know the model's own
        model.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model; see the module's text for what follows when memory does not suffice."""
        passes = self.passes
        if torch.compiler.is_compiling() or passes is None or not torch.is_grad_enabled() or not passes.in_hand():
            return self.forward(*args, **kwargs)
        samples = passes.in_hand()
        if not passes.is_unfit():
            if self.recording:
                self.recorded = Call(args, kwargs, samples, self._device)
            try:
                passes.admit()
                return self.forward(*args, **kwargs)
            except (RuntimeError, MemoryError) as error:
                if samples <= 1 or not is_out_of_memory(error, self._device, scarce=is_scarce(self._meter)):
                    raise
                message = first_line(error)
            # Outside of the ``except``: the error's traceback holds on to the failed pass.
            passes.ran_out(message)
        release_memory(self._device)
        return self._stand_in(Call(args, kwargs, samples, self._device))

    def _stand_in(self, call: Call) -> Any:
        few = min(_FEW, call.samples)
        with torch.no_grad():
            outputs = call.again(self.forward, few)
        # Not leaves: a script may change its model's outputs in place.
        return tree_map(_derived, resized(tree_map(_leaf, outputs), few, call.samples))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        import copy

        return copy.deepcopy(self.forward, memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.forward,)


def _itself(value: T) -> T:
    return value


def resized(tree: T, samples: int, wanted: int) -> T:
    """Return ``tree`` with its tensors of ``samples`` samples cut or repeated to ``wanted``; the rest stays as it is.

    Samples lie along the first dimension, or along the second (time first) where no tensor has them along the first.
    """
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    along = 0 if any(tensor.ndim > 0 and tensor.shape[0] == samples for tensor in tensors) else 1

    def fit(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.ndim <= along or leaf.shape[along] != samples:
            return leaf
        return leaf.index_select(along, torch.arange(wanted, device=leaf.device) % samples)

    sized: T = tree_map(fit, tree)
    return sized


def _leaf(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().requires_grad_() if value.is_floating_point() or value.is_complex() else value.detach()


def _derived(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) and value.is_leaf and value.requires_grad else value
