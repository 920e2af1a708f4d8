"""The gradient of the global batch when no worker ever has all of it.

FSDP2 reduces gradients by itself, layer by layer in each backward pass: every worker is left with its part of the sum.
With losses weighted by m/B (see ``rex_worker.averaging``) and sums instead of FSDP2's averages, that is its part of the
global batch's gradient already. What is left to do at the end of a step is one small collective: the votes, each
worker's share of the norm, and which parameters anybody used, as one that nobody used has no gradient in a single
process either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rex_worker.averaging import Reducer
from rex_worker.buckets import square_of
from rex_worker.errors import Desynchronised, GroupLost, RexError
from rex_worker.group import Group
from rex_worker.sharding.usage import Usage
from rex_worker.sharding.wire import Wire

_BYTES = 8
_NO_CEILING = 2**62
_EXTRAS = 2
"""Numbers beside the vote: this worker's part of |g|^2, and the trace of its collectives."""


class ShardedAverager:
    """An ``Averager`` for a model that FSDP2 shards over the group."""

    together = True

    def __init__(self, vote_numbers: int, cargo: Tensor | None) -> None:
        self._vote_numbers = vote_numbers
        self._cargo = cargo
        self._parameters: dict[str, nn.Parameter] = {}
        self._wire: Wire | None = None
        self._usage: Usage | None = None
        self._works: list[Any] = []
        self._rows: list[list[float]] = []
        self._used: list[bool] = []
        self._own_passes = 0
        self._square = 0.0

    def dressed(self, parameters: dict[str, nn.Parameter], usage: Usage, wire: Wire) -> None:
        """The model has been sharded anew: these are its trained parameters, and this is how it communicates."""
        self._parameters = parameters
        self._usage = usage
        self._wire = wire

    @property
    def wire(self) -> Wire:
        """The present group's collectives."""
        if self._wire is None:
            raise RexError("the model is sharded when its first group forms")
        return self._wire

    @property
    def works(self) -> Sequence[Any]:
        """The cargo's sum, if there is one; all else is done when the call that needs it returns."""
        return self._works

    def common_ceiling(self, reducer: Reducer, own: int | None) -> int | None:
        """Agree on the smallest of all, so that everybody knows how many passes there are."""
        ceilings = self._group().gathered(torch.tensor([_NO_CEILING if own is None else own]))
        smallest = int(ceilings.min())
        return None if smallest == _NO_CEILING else smallest

    def pass_ends(self, weight: float) -> None:
        """Count the passes that have samples of this worker's share."""
        self._own_passes += weight > 0

    def give_way(self) -> None:
        """A pass that broke off cannot be made up for: the others wait in its collectives. The group has to form anew.

        No part of the state is lost with that.
        """
        raise GroupLost("this worker could not do its part of a sharded step")

    def square_so_far(self) -> Tensor | None:
        """None: gradients lie in parts."""
        return None

    def waited_s(self) -> float:
        """Seconds of the step's passes that went by in waiting for the others' parts."""
        return self.wire.waited_s

    def arm(self, reducer: Reducer) -> None:
        """Nothing: FSDP2 reduces in each pass."""

    def complete(self, reducer: Reducer) -> None:
        """Raise ``GroupLost`` if a collective of the passes failed."""
        self.wire.check()

    def local_square(self, weight: float) -> float | None:
        """|g_i|^2 of this worker's own mean gradient; None after several passes, which are reduced one by one."""
        if weight <= 0:
            return None
        if self._group().size == 1:
            return self._part_of_square() / weight**2
        if self._own_passes != 1:
            return None
        return float(torch.stack(self.wire.squares).sum()) / weight**2 if self.wire.squares else 0.0

    def launch(self, reducer: Reducer, vote: Sequence[float]) -> None:
        """Exchange the votes, the norms and what was used."""
        if self._cargo is not None:
            self._works = [self._group().all_reduce(self._cargo)]
        numbers = torch.tensor([*vote, self._part_of_square(), float(self.wire.trace)], dtype=torch.float64)
        flags = torch.tensor([self._is_used(name) for name in self._parameters], dtype=torch.uint8)
        rows = self._group().gathered(torch.cat([numbers.view(torch.uint8), flags]))
        told, used = torch.split(rows, [numbers.numel() * _BYTES, flags.numel()], dim=1)
        self._rows = told.flatten().clone().view(torch.float64).view(len(rows), -1).tolist()
        self._used = used.any(0).tolist()

    def votes(self, reducer: Reducer) -> list[list[float]]:
        """The votes of all ranks. Raises ``Desynchronised`` if they did not run the same layers."""
        if len({row[-1] for row in self._rows}) > 1:
            raise Desynchronised(
                "the workers did not call the same sharded layers in this step; with session.prepare(..., shard=...)"
                " every worker must run the same parts of the model in the same order, whatever its samples are"
            )
        return [row[:-_EXTRAS] for row in self._rows]

    def finish(self, factor: float = 1.0) -> float:
        """Scale this worker's parts of the gradients by ``factor``; returns |g|^2 of the whole."""
        for parameter, used in zip(self._parameters.values(), self._used, strict=True):
            if factor == 0.0:
                parameter.grad = torch.zeros_like(parameter)
            elif not used:
                parameter.grad = None
        if factor not in (0.0, 1.0):
            self._scale(factor)
        self._square = sum(row[-_EXTRAS] for row in self._rows) * factor**2
        self._works = []
        return self._square

    def clip(self, max_norm: float) -> None:
        """Scale the gradients down to a norm of at most ``max_norm``; nothing is communicated, the norm is known."""
        coefficient = max_norm / (self._square**0.5 + 1e-6)
        if coefficient < 1.0:
            self._scale(coefficient)
            self._square *= coefficient**2

    def has_gradients(self) -> bool:
        """Whether any parameter has a gradient."""
        return any(parameter.grad is not None for parameter in self._parameters.values())

    def reset(self) -> None:
        """Drop all gradients, and begin anew."""
        for parameter in self._parameters.values():
            parameter.grad = None
        self._works, self._own_passes = [], 0
        self.wire.begin()
        if self._usage is not None:
            self._usage.clear()

    def _group(self) -> Group:
        return self.wire.group

    def _is_used(self, name: str) -> bool:
        known = None if self._usage is None else self._usage.used(name)
        if known is not None:
            return known
        gradient = self._parameters[name].grad
        return isinstance(gradient, DTensor) and bool(gradient.to_local().any())

    def _gradients(self) -> list[Tensor]:
        """This worker's parts."""
        return [p.grad.to_local() for p in self._parameters.values() if isinstance(p.grad, DTensor)]

    def _part_of_square(self) -> float:
        return sum(float(square_of(part)) for part in self._gradients())

    def _scale(self, factor: float) -> None:
        if parts := self._gradients():
            torch._foreach_mul_(parts, factor)
