"""One state for all members of a new generation, when each of them has only parts of it, or none.

Everybody tells which parts of which cut it holds. The most advanced state that is whole among the members counts. Its
parts are sent round, some tensors at a time, and each worker copies what lies in its own part of the new cut: as much
traffic as one forward pass has for the parameters, and no worker ever has more than its part and what is under way.

A worker that is lost takes its parts along. Then there is no whole state among the members, and everybody reads its own
part of the newest checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from rex_worker.group import Group
from rex_worker.sharding.dressing import cut_dim
from rex_worker.sharding.holding import FRESH, Description, Holding, broadcast, send_part
from rex_worker.sharding.layout import Cut, Region, copy_common, shape_of
from rex_worker.staging import gather_texts

Like = Callable[[str, tuple[int, ...]], DTensor | None]
"""Gives the DTensor that a tensor of the state, by name and shape, is to be placed as; None where there is none."""


@dataclass(frozen=True)
class Claim:
    """What one member says that it holds."""

    step: int
    origin: int
    count: int
    indices: tuple[int, ...]


@dataclass(frozen=True)
class Choice:
    """The state that counts."""

    step: int
    origin: int
    count: int
    owners: tuple[int, ...]
    """For each part the rank that sends it."""


def claims(group: Group, holding: Holding | None) -> list[Claim | None]:
    """Let everybody tell what it holds, in rank order."""
    numbers = [] if holding is None else [holding.step, holding.origin, holding.count, *sorted(holding.parts)]
    width = int(group.gathered(torch.tensor([len(numbers)])).max())
    padded = torch.full((width,), -1, dtype=torch.int64)
    padded[: len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
    if not width:
        return [None] * group.size
    rows = group.gathered(padded).tolist()
    return [Claim(row[0], row[1], row[2], tuple(i for i in row[3:] if i >= 0)) if row[2] > 0 else None for row in rows]


def choose(told: Sequence[Claim | None]) -> Choice | None:
    """The most advanced state that is whole among the members; of equals the last cut; None if there is none.

    A fresh state is whole at each member, and another one at each: that of the lowest rank counts.
    """
    groups: dict[tuple[int, int, int], dict[int, int]] = {}
    for rank, claim in enumerate(told):
        if claim is not None:
            owners = groups.setdefault((claim.step, claim.origin, claim.count), {})
            for index in claim.indices:
                owners.setdefault(index, rank)
    whole = [key for key, owners in groups.items() if len(owners) == key[2]]
    if not whole:
        return None
    step, origin, count = max(whole)
    owners = groups[step, origin, count]
    return Choice(step, origin, count, tuple(owners[index] for index in range(count)))


def furthest(told: Sequence[Claim | None]) -> int:
    """The most advanced step of which anybody holds a part."""
    return max((claim.step for claim in told if claim is not None), default=FRESH)


def describe(group: Group, choice: Choice, holding: Holding | None) -> Description:
    """Tell everybody what the chosen state looks like."""
    source = choice.owners[0]
    own = _encode(holding.description) if group.rank == source and holding is not None else ""
    return _decode(gather_texts(group, own)[source])


def transfer(
    group: Group,
    mesh: DeviceMesh,
    choice: Choice,
    description: Description,
    holding: Holding | None,
    like: Like,
    device: torch.device,
) -> dict[str, Tensor]:
    """Bring the chosen state's tensors to the group's new cut.

    Args:
        group: Every member calls this.
        mesh: The group as a mesh.
        choice: What all have chosen.
        description: Of the chosen state.
        holding: What this worker has; parts of another state are not looked at.
        like: How tensors are placed in the new cut.
        device: Where tensors travel, and where those on the mesh will live.

    Returns:
        All tensors by name: those that ``like`` places, or that were cut before, as DTensors; others whole, on the
        host.

    Raises:
        GroupLost: A member was lost.
    """
    parts = holding.parts if holding is not None and _is(holding, choice) else {}
    rows = zip(description.names, description.cuts, description.dtypes, strict=True)
    targets = [_target(mesh, name, cut, dtype, like, device) for name, cut, dtype in rows]
    for batch in description.batches():
        whole = {place: description.cuts[place].shape for place in batch if description.cuts[place].dim is None}
        source = choice.owners[0]
        own = parts[0] if group.rank == source else None
        for place, tensor in broadcast(group, whole, description.dtypes, own, source, device).items():
            targets[place].take(tensor, description.cuts[place].region(1, 0))
        for index, owner in enumerate(choice.owners):
            sent = send_part(group, description, choice.count, index, parts, owner, batch, device)
            for place, tensor in sent.items():
                targets[place].take(tensor, description.cuts[place].region(choice.count, index))
    return {name: target.finished() for name, target in zip(description.names, targets, strict=True)}


@dataclass(frozen=True)
class _Target:
    """This worker's part of one tensor in the new cut, while it is filled."""

    local: Tensor
    region: Region
    cut: Cut
    mesh: DeviceMesh
    on_mesh: bool

    def take(self, part: Tensor, region: Region) -> None:
        copy_common(self.local, self.region, part, region)

    def finished(self) -> Tensor:
        if not self.on_mesh:
            return self.local
        placement = Replicate() if self.cut.dim is None else Shard(self.cut.dim)
        blank = torch.empty(self.cut.shape, device="meta")
        return DTensor.from_local(
            self.local, self.mesh, [placement], run_check=False, shape=blank.shape, stride=blank.stride()
        )


def _target(mesh: DeviceMesh, name: str, cut: Cut, dtype: torch.dtype, like: Like, device: torch.device) -> _Target:
    model = like(name, cut.shape)
    if model is not None:
        cut = Cut(cut.shape, cut_dim(model))
    on_mesh = model is not None or cut.dim is not None
    if model is not None and name.startswith("model."):
        # Straight into the parameter: the memory for another copy may not be there.
        return _Target(
            cast(DTensor, model.detach()).to_local(), cut.region(mesh.size(), mesh.get_rank()), cut, mesh, on_mesh
        )
    region = cut.region(mesh.size(), mesh.get_rank())
    where = device if on_mesh else torch.device("cpu")
    return _Target(torch.empty(shape_of(region), dtype=dtype, device=where), region, cut, mesh, on_mesh)


def _encode(description: Description) -> str:
    cuts = [[list(cut.shape), cut.dim] for cut in description.cuts]
    return json.dumps([description.text, description.names, cuts, [str(dtype) for dtype in description.dtypes]])


def _decode(text: str) -> Description:
    state, names, cuts, dtypes = json.loads(text)
    known = [getattr(torch, name.removeprefix("torch.")) for name in dtypes]
    return Description(state, names, [Cut(tuple(shape), dim) for shape, dim in cuts], known)


def _is(holding: Holding, choice: Choice) -> bool:
    return (holding.step, holding.origin, holding.count) == (choice.step, choice.origin, choice.count)
