"""One state for all members of a new generation.

When a group forms, some members stand at the same step, one may be a step ahead (it still finished the step in which
a peer died), some are new. The most advanced member's state counts; ties go to the lowest rank. If nobody has any,
rank 0 looks for a checkpoint, and only a job that never committed one may start afresh. States are compared by an
exact fingerprint, so that a planned shrink moves no bytes and a silent difference between workers is healed, not
trained on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from rex_worker.errors import CheckpointMissing, Desynchronised
from rex_worker.group import Group
from rex_worker.state import pack, unpack

log = logging.getLogger("rex.synchronisation")

_DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip
_FRESH = -1
_CHUNK_BYTES = 16 * 2**20


class Replica(Protocol):
    """What is kept the same on all workers: model, optimiser, schedule and position in the data."""

    @property
    def has_state(self) -> bool:
        """Whether it was ever agreed on in a group or loaded."""

    @property
    def step(self) -> int:
        """Optimiser steps applied."""

    @property
    def passed_over(self) -> int:
        """Step of the newest checkpoint, if it was damaged when this worker loaded an older one."""

    def state(self) -> dict[str, Any]:
        """Everything, as nested plain data and tensors."""

    def trained(self) -> Any:
        """The tensors that training changes alike on all workers."""

    def adopt(self, state: dict[str, Any]) -> None:
        """Take over another's ``state``."""

    def mark_agreed(self) -> None:
        """The state is the group's from now on."""


@dataclass(frozen=True)
class _Standing:
    step: int
    fingerprint: int


def synchronise(group: Group, replica: Replica, min_step: int, load: Callable[[], bool], device: torch.device) -> None:
    """Bring all members of ``group`` to one state.

    Args:
        group: The new group; every member calls this.
        replica: This worker's state.
        min_step: A step that was committed before: with less the job must not go on.
        load: Loads the newest checkpoint into ``replica``; False when there is none. Called on rank 0 only.
        device: Where ``replica`` keeps its large tensors.

    Raises:
        GroupLost: A member was lost meanwhile; ``replica`` is unharmed or wholly replaced.
        CheckpointMissing: Nobody has ``min_step``; raised on all members.
        Desynchronised: The states differ although they were just made equal.
    """
    standings = _exchange(group, replica)
    if max(standing.step for standing in standings) < max(min_step, 0):
        if group.rank == 0:
            load()
        standings = _exchange(group, replica)
        best = max(standing.step for standing in standings)
        damaged = int(group.gathered(torch.tensor([replica.passed_over])).max())
        fell_back = best > 0 and damaged >= min_step  # what was committed is there, and known to be damaged
        if max(best, 0) < min_step and not fell_back:
            found = "no usable checkpoint was found" if best < 0 else f"the newest state found is of step {best}"
            raise CheckpointMissing(
                f"a checkpoint of step {min_step} was committed, but {found}; training does not start over by itself:"
                " check that the checkpoint volume is the same one on every worker"
            )
    best = max(standing.step for standing in standings)
    source = next(rank for rank, standing in enumerate(standings) if standing.step == best)
    if len(set(standings)) > 1 or best == _FRESH:
        if group.rank == source:
            log.info("giving state of step %d to %d workers", replica.step, group.size - 1)
        _spread(group, replica, source, device)
        replica.mark_agreed()
        if len(set(_exchange(group, replica))) > 1:
            raise Desynchronised("the workers' states differ right after they were made equal; is the memory sound?")
    replica.mark_agreed()


def _exchange(group: Group, replica: Replica) -> list[_Standing]:
    step = replica.step if replica.has_state else _FRESH
    mine = torch.tensor([step, fingerprint(replica.trained())], dtype=torch.int64)
    return [_Standing(int(step), int(mark)) for step, mark in group.gathered(mine).tolist()]


def fingerprint(state: Any) -> int:
    """Checksum of all tensors' bits in ``state``: exact, so the same on every kind of processor."""
    _, tensors = pack(state)
    total = 0
    for place, tensor in enumerate(tensors):
        bits = tensor.contiguous().reshape(-1).view(torch.uint8)
        words = bits.view(torch.int32) if bits.numel() % 4 == 0 and bits.storage_offset() % 4 == 0 else bits
        total += (place + 1) * int(words.sum(dtype=torch.int64))
    return total % (2**53)


def _spread(group: Group, replica: Replica, source: int, device: torch.device) -> None:
    if group.size == 1:
        return
    text, tensors = pack(replica.state()) if group.rank == source else ("", [])
    data = _broadcast_text(group, text, source)
    shapes = _broadcast_shapes(group, tensors, source)
    received = _broadcast_tensors(group, tensors, shapes, source, device)
    if group.rank != source:
        replica.adopt(unpack(data, received))


def _broadcast_text(group: Group, text: str, source: int) -> str:
    raw = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)
    length = torch.tensor([raw.numel()], dtype=torch.int64)
    group.broadcast(length, source)
    if group.rank != source:
        raw = torch.empty(int(length), dtype=torch.uint8)
    group.broadcast(raw, source)
    return bytes(raw.numpy()).decode()


def _broadcast_shapes(group: Group, tensors: list[Tensor], source: int) -> list[tuple[torch.dtype, bool, list[int]]]:
    """Tell everybody what comes: dtype, whether it lives on the device, shape."""
    numbers = [len(tensors)]
    for tensor in tensors:
        numbers += [_DTYPES.index(tensor.dtype), int(tensor.device.type != "cpu"), tensor.dim(), *tensor.shape]
    length = torch.tensor([len(numbers)], dtype=torch.int64)
    group.broadcast(length, source)
    table = torch.tensor(numbers if group.rank == source else [0] * int(length), dtype=torch.int64)
    group.broadcast(table, source)
    values = iter(table.tolist())
    shapes = []
    for _ in range(next(values)):
        dtype, on_device, dim = next(values), next(values), next(values)
        shapes.append((_DTYPES[dtype], bool(on_device), [next(values) for _ in range(dim)]))
    return shapes


def _broadcast_tensors(
    group: Group,
    tensors: list[Tensor],
    shapes: list[tuple[torch.dtype, bool, list[int]]],
    source: int,
    device: torch.device,
) -> list[Tensor]:
    received: list[Tensor] = []
    chunk: list[Tensor] = []
    for place, (dtype, on_device, shape) in enumerate(shapes):
        where = device if on_device else torch.device("cpu")
        tensor = tensors[place].contiguous() if group.rank == source else torch.empty(shape, dtype=dtype, device=where)
        received.append(tensor)
        full = sum(part.numel() * part.element_size() for part in chunk) >= _CHUNK_BYTES
        if chunk and (full or chunk[0].dtype != tensor.dtype or chunk[0].device != tensor.device):
            _broadcast_chunk(group, chunk, source)
            chunk = []
        chunk.append(tensor)
    if chunk:
        _broadcast_chunk(group, chunk, source)
    return received


def _broadcast_chunk(group: Group, chunk: list[Tensor], source: int) -> None:
    flat = torch.cat([part.reshape(-1) for part in chunk])
    if not flat.numel():
        return
    # As bytes: every backend carries those, whatever it knows of the dtype.
    group.broadcast(flat.view(torch.uint8), source)
    if group.rank != source:
        sizes = [part.numel() for part in chunk]
        for part, values in zip(chunk, torch.split(flat, sizes), strict=True):
            part.copy_(values.view_as(part))
