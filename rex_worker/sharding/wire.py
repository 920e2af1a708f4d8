"""FSDP2's collectives, which may fail in the middle of the script's own code.

A sharded model communicates in every forward pass, that is, inside of ``model(x)``. A peer that is lost there would
raise an error in the script, which has no idea what to do with it. So the collectives never raise: from the loss on
they deliver zeros, without communicating, until the group is given up at the next call into REX, which voids the step.
The same silence serves a worker that must not disturb the others because it is not where they are.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from rex_worker.buckets import square_of
from rex_worker.errors import GroupLost, RexError
from rex_worker.group import Group


class Wire:
    """One group's collectives for the sharded parameters."""

    def __init__(self, group: Group, device: torch.device) -> None:
        self.group = group
        self._device = device
        self.silent = False
        """Deliver zeros and communicate nothing."""
        self.squares: list[Tensor] = []
        """Of each local gradient that was sent: its |.|^2."""
        self.waited_s = 0.0
        """Time spent in collectives that the program waited for; 0 on a GPU, which waits by itself."""
        self.trace = 0
        """Checksum of what was called since ``begin``: the same on all workers that call the same layers."""

    def attach(self, modules: Sequence[FSDPModule]) -> None:
        """Let the sharded modules communicate through this wire, and sum gradients instead of averaging them."""
        for number, module in enumerate(modules):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            module.set_reduce_scatter_unused_params(True)
            module.set_custom_all_gather(_Gather(self, number))  # type: ignore[arg-type]
            module.set_custom_reduce_scatter(_ReduceScatter(self, number))  # type: ignore[arg-type]

    def begin(self) -> None:
        """A step begins."""
        self.squares, self.waited_s, self.trace = [], 0.0, 0

    def check(self) -> None:
        """Raise ``GroupLost`` if the group was lost meanwhile."""
        self.group.check()

    def perform(self, name: str, result: Tensor, start: Callable[[bool], Any]) -> Any:
        """Run a collective that fills ``result``; ``start(async_op)`` starts it. All workers give the same ``name``."""
        if self.silent or self.group.broken is not None:
            result.zero_()
            return None
        if self.group.closed:
            raise RexError(
                "the sharded model was called after the training had ended: its parts lie with workers that are gone;"
                " evaluate it inside of the with block, or read all of it from its last checkpoint with"
                " rex_worker.checkpoint.read_model_state"
            )
        self.trace = zlib.crc32(name.encode(), self.trace)
        try:
            if self._device.type == "cuda":  # ordered by the streams; a failure shows at the step's exchange
                return self.group.started(lambda: start(False))
            begun = time.perf_counter()
            self.group.wait([self.group.started(lambda: start(True))])
            self.waited_s += time.perf_counter() - begun
        except GroupLost as error:
            self.group.break_up(error)
            result.zero_()
        return None


class _Comm:
    """What FSDP2 asks of a collective besides running it."""

    def __init__(self, wire: Wire, number: int) -> None:
        self._wire = wire
        self._number = number

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for its input or output."""
        return torch.empty(*size, dtype=dtype, device=device)


class _Gather(_Comm):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> Any:
        """Give everybody all parts of some parameters."""
        return self._wire.perform(
            f"gather {self._number}",
            output_tensor,
            lambda later: dist.all_gather_into_tensor(
                output_tensor, input_tensor, group=group, async_op=later or async_op
            ),
        )


class _ReduceScatter(_Comm):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> Any:
        """Give each worker its part of the sum of all workers' gradients."""
        self._wire.squares.append(square_of(input_tensor))
        name = f"reduce {self._number}"
        if input_tensor.is_cuda:
            return self._wire.perform(
                name,
                output_tensor,
                lambda later: dist.reduce_scatter_tensor(
                    output_tensor, input_tensor, op=dist.ReduceOp.SUM, group=group, async_op=async_op
                ),
            )
        # Whoever waits for gloo's own reduce-scatter cannot stop waiting before the group's time-out.
        arrived = torch.empty_like(input_tensor)
        self._wire.perform(
            name, arrived, lambda later: dist.all_to_all_single(arrived, input_tensor, group=group, async_op=later)
        )
        torch.sum(arrived.view(group.size(), -1), 0, out=output_tensor)
        return None
