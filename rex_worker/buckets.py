"""Flat memory in which gradients travel.

One collective per parameter would cost more than the sums themselves, so neighbours share a bucket. A bucket is one
flat tensor: the gradients, one flag per parameter that says whether it has one, the cargo, and the votes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

BUCKET_BYTES = 25 * 2**20
FIRST_BUCKET_BYTES = 2**20
"""The first bucket is small: it is complete early and starts the overlap."""
_LOW_PRECISION = (torch.float16, torch.bfloat16)

Named = tuple[str, torch.nn.Parameter]


@dataclass
class Bucket:
    """Parameters that travel together, and their place in ``flat``."""

    names: list[str]
    parameters: list[torch.nn.Parameter]
    flat: Tensor
    gradients: Tensor
    slices: list[Tensor]
    """Views of ``gradients`` in the parameters' shapes."""
    flags: Tensor
    cargo: Tensor
    votes: Tensor
    wire: Tensor
    """What is summed over the group: ``flat`` itself, or a copy in lower precision."""
    ready: set[int] = field(default_factory=set)
    """Places of the parameters whose gradient is complete."""

    def full(self) -> bool:
        """Whether all gradients are complete."""
        return len(self.ready) == len(self.parameters)

    def fill(self) -> None:
        """Copy the gradients that are complete in, zeros for the others, and set the flags."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if len(gradients) == len(self.slices) == len(self.ready):
            torch._foreach_copy_(self.slices, gradients)
            self.flags.fill_(1.0)
            return
        self.gradients.zero_()
        self.flags.zero_()
        for place in self.ready:
            gradient = self.parameters[place].grad
            if gradient is not None:
                self.slices[place].copy_(gradient)
                self.flags[place] = 1.0

    def write_back(self, used: Iterator[float]) -> None:
        """Give the parameters their averaged gradients; none to those for which ``used`` yields 0."""
        targets, sources = [], []
        for parameter, part in zip(self.parameters, self.slices, strict=True):
            if not next(used):
                parameter.grad = None
            elif parameter.grad is None:
                parameter.grad = part.clone()
            else:
                targets.append(parameter.grad)
                sources.append(part)
        if targets:
            torch._foreach_copy_(targets, sources)

    def norm(self) -> Tensor:
        """Norm of the gradients: a scalar on the bucket's device."""
        return norm_of(self.gradients)

    def lay_out(self, cargo: int = 0, votes: int = 0) -> None:
        """Take fresh memory, with room for so many numbers behind the flags."""
        sizes = [parameter.numel() for parameter in self.parameters]
        first = self.parameters[0]
        self.flat = torch.zeros(sum(sizes) + len(sizes) + cargo + votes, dtype=first.dtype, device=first.device)
        self.gradients = self.flat[: sum(sizes)]
        *parts, self.flags, self.cargo, self.votes = torch.split(self.flat, [*sizes, len(sizes), cargo, votes])
        self.slices = [part.view(parameter.shape) for part, parameter in zip(parts, self.parameters, strict=True)]
        self.wire = self.flat


def norm_of(values: Tensor) -> Tensor:
    """Norm, in float32 at least: a scalar on the device of ``values``."""
    precise = torch.float32 if values.dtype in _LOW_PRECISION else values.dtype
    norm: Tensor = torch.linalg.vector_norm(values, dtype=precise)
    return norm


def square_of(values: Tensor) -> Tensor:
    """Sum of squares: a float64 scalar on the device of ``values``."""
    return norm_of(values).double().square()


def fill_buckets(named: Sequence[Named], bucket_bytes: int) -> list[Bucket]:
    """Sort parameters into buckets of about ``bucket_bytes``, in their order; one kind of memory per bucket."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Named]] = {}
    for name, parameter in named:
        kinds.setdefault((parameter.dtype, parameter.device), []).append((name, parameter))
    buckets = []
    for members in kinds.values():
        limit = min(FIRST_BUCKET_BYTES, bucket_bytes)
        group: list[Named] = []
        size = 0
        for name, parameter in members:
            group.append((name, parameter))
            size += parameter.numel() * parameter.element_size()
            if size >= limit:
                buckets.append(_bucket(group))
                group, size, limit = [], 0, bucket_bytes
        if group:
            buckets.append(_bucket(group))
    return buckets


def _bucket(members: list[Named]) -> Bucket:
    none = torch.empty(0)
    bucket = Bucket([name for name, _ in members], [p for _, p in members], none, none, [], none, none, none, none)
    bucket.lay_out()
    return bucket
