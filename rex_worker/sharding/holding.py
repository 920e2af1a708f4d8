"""What a worker has of a training state between two groups.

While a group runs, its state lies in DTensors that know only that group. When it ends, each worker keeps its own part
as plain tensors in host memory, with a description that every other worker would give likewise. A worker may come to
hold a second part: that of one who leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from rex_worker.group import Group
from rex_worker.sharding.dressing import cut_dim
from rex_worker.sharding.layout import Cut, shape_of
from rex_worker.state import pack_named

FRESH = -1
"""Step of a state that no group ever agreed on."""
BATCH_BYTES = 64 * 2**20
"""Of the state's tensors, about so much is under way at a time."""
_ALIGN = 16

Part = list[Tensor]
"""One worker's part of each tensor, in the description's order; those that are not cut are whole."""


@dataclass(frozen=True)
class Description:
    """A state without its numbers: ``text`` as ``state.pack_named`` writes it, and what is known of each tensor."""

    text: str
    names: list[str]
    cuts: list[Cut]
    dtypes: list[torch.dtype]

    def batches(self) -> Iterable[list[int]]:
        """The tensors' places in runs of about ``BATCH_BYTES``."""
        run: list[int] = []
        size = 0
        for place, (cut, dtype) in enumerate(zip(self.cuts, self.dtypes, strict=True)):
            run.append(place)
            size += torch.Size(cut.shape).numel() * dtype.itemsize
            if size >= BATCH_BYTES:
                yield run
                run, size = [], 0
        if run:
            yield run


@dataclass
class Holding:
    """Parts of the state of ``step``, as the group of generation ``origin`` had cut it into ``count`` parts."""

    step: int
    origin: int
    count: int
    description: Description
    parts: dict[int, Part] = field(default_factory=dict)
    """By number: the rank that had it."""


def held(state: Any, step: int, origin: int, count: int, index: int) -> Holding:
    """What this worker has of ``state``: part ``index`` of ``count``; its tensors are moved to host memory."""
    text, named = pack_named(state)
    tensors = list(named.values())
    cuts = [Cut(tuple(tensor.shape), cut_dim(tensor)) for tensor in tensors]
    description = Description(text, list(named), cuts, [tensor.dtype for tensor in tensors])
    locals_ = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return Holding(step, origin, count, description, {index: [part.cpu() for part in locals_]})


def hand_over(group: Group, holding: Holding, leaving: Sequence[int], device: torch.device) -> None:
    """Before a group ends as planned: the parts of those who leave go to those who stay, a like number to each.

    Args:
        group: The group, still whole; every member calls this.
        holding: This worker's; gets the parts that fall to it.
        leaving: Ranks that will not be in the next group.
        device: Where tensors travel.

    Raises:
        GroupLost: A member was lost meanwhile; ``holding`` may lack parts.
    """
    staying = [rank for rank in range(group.size) if rank not in leaving]
    if not staying:
        return
    for number, leaver in enumerate(leaving):
        keeper = staying[number % len(staying)]
        received: Part = list(holding.parts[group.rank])
        for batch in holding.description.batches():
            sent = send_part(group, holding.description, holding.count, leaver, holding.parts, leaver, batch, device)
            if group.rank == keeper:
                for place, tensor in sent.items():
                    received[place] = tensor.cpu()
        if group.rank == keeper:
            holding.parts[leaver] = received


def send_part(
    group: Group,
    description: Description,
    count: int,
    index: int,
    parts: Mapping[int, Part],
    owner: int,
    batch: Sequence[int],
    device: torch.device,
) -> dict[int, Tensor]:
    """Give everybody part ``index`` of ``count`` of the tensors at the places of ``batch`` that are cut.

    Rank ``owner`` has it in its ``parts``. Returns tensors by place, on ``device``.
    """
    cut = [place for place in batch if description.cuts[place].dim is not None]
    shapes = {place: shape_of(description.cuts[place].region(count, index)) for place in cut}
    return broadcast(group, shapes, description.dtypes, parts[index] if group.rank == owner else None, owner, device)


def broadcast(
    group: Group,
    shapes: dict[int, tuple[int, ...]],
    dtypes: Sequence[torch.dtype],
    own: Part | None,
    source: int,
    device: torch.device,
) -> dict[int, Tensor]:
    """Give everybody some tensors of rank ``source``, which has them in ``own``, in one message of bytes."""
    places, end = {}, 0
    for place, shape in shapes.items():
        size = torch.Size(shape).numel() * dtypes[place].itemsize
        places[place] = (end, size)
        end += -(-size // _ALIGN) * _ALIGN
    flat = torch.zeros(end, dtype=torch.uint8, device=device)
    if own is not None:
        for place, (begin, size) in places.items():
            if size:
                flat[begin : begin + size] = own[place].contiguous().reshape(-1).view(torch.uint8).to(device)
    if end:
        group.broadcast(flat, source)
    return {
        place: flat[begin : begin + size].view(dtypes[place]).view(shapes[place])
        for place, (begin, size) in places.items()
    }
