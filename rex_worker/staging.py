"""The state of one step, copied off the devices while training stands still, which must be short.

The copy goes to page-locked memory where there is a GPU: all tensors are under way at once, and training goes on as
soon as the last has arrived. The memory is kept for the next copy. Allocating it anew would cost more than the copy.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.tensor import DTensor

from rex_worker.manifest import decode_plan, encode_plan
from rex_worker.state import pack_named


class Party(Protocol):
    """Those who write or read one checkpoint together; a ``Group`` is one."""

    rank: int
    size: int

    def gathered(self, vector: Tensor) -> Tensor:
        """Gather each rank's 1-d CPU ``vector``: shape (size, len)."""


class Planner(DefaultSavePlanner):
    """DCP's planner, which looks up in the copies what it planned on the live tensors.

    What several ranks have is written by the lowest of them: of what is each rank's own, such as its random states,
    that of rank 0 counts.
    """

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False, dedup_save_to_lowest_rank=True)
        self.copies: Mapping[str, Tensor] = {}

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        """The copy of this rank's box of a tensor."""
        return self.copies[index.fqn]


@dataclass(frozen=True)
class Snapshot:
    """A state copied off the devices, safe from further training. With several ranks: this rank's part of it."""

    step: int
    samples: int
    text: str
    """What is not a tensor, as JSON."""
    tensors: Mapping[str, Tensor]
    """This rank's boxes by the tensors' names, on the host."""
    planner: Planner
    plan: SavePlan
    metadata: Metadata
    rank: int
    size: int
    token: str
    """The same on all ranks, and on no other snapshot."""


class Stager:
    """Takes snapshots, and uses the memory of released ones again."""

    def __init__(self) -> None:
        self._free: list[dict[str, Tensor]] = []

    def take(self, state: Any, step: int, samples: int, party: Party | None = None) -> Snapshot:
        """Copy ``state`` to host memory.

        Args:
            state: Nested plain data and tensors; ``DTensor`` among them where it is sharded.
            step: Optimiser steps applied.
            samples: Samples applied.
            party: All ranks that keep ``state`` together, each its own shards and a share of the rest; every one
                of them calls this at the same step. None: this process keeps all of it, alone.

        Raises:
            UsageError: ``state`` holds what cannot be kept.
            GroupLost: A rank of the party was lost.
        """
        text, live = pack_named(state)
        rank, size = (party.rank, party.size) if party is not None else (0, 1)
        planner = Planner()
        planner.set_up_planner(dict(live), is_coordinator=rank == 0)
        mine = json.dumps({"token": secrets.token_hex(8), "plan": encode_plan(planner.create_local_plan())})
        told = [json.loads(text) for text in gather_texts(party, mine)]
        plans, metadata = planner.create_global_plan([decode_plan(one["plan"]) for one in told])
        plan = planner.finish_plan(plans[rank])
        copies = self._copy({item.index.fqn: live[item.index.fqn] for item in plan.items})
        planner.copies, planner.state_dict = copies, {}
        return Snapshot(step, samples, text, copies, planner, plan, metadata, rank, size, told[0]["token"])

    def release(self, taken: Snapshot) -> None:
        """``taken`` is no longer needed: its memory may be used again."""
        self._free.append(dict(taken.tensors))

    def _copy(self, live: Mapping[str, Tensor]) -> dict[str, Tensor]:
        old = self._free.pop() if self._free else {}
        copies, devices = {}, set()
        for name, tensor in live.items():
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            copy = old.get(name)
            if copy is None or copy.shape != local.shape or copy.dtype != local.dtype:
                copy = torch.empty(local.shape, dtype=local.dtype, device="cpu", pin_memory=local.is_cuda)
            copies[name] = copy.copy_(local, non_blocking=local.is_cuda)
            if local.is_cuda:
                devices.add(local.device)
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
        return copies


def snapshot(state: Any, step: int, samples: int) -> Snapshot:
    """Copy ``state`` once; whoever takes snapshots again and again keeps a ``Stager``."""
    return Stager().take(state, step, samples)


def gather_texts(party: Party | None, text: str) -> list[str]:
    """Every rank's ``text``, in rank order, on every rank."""
    if party is None or party.size == 1:
        return [text]
    raw = torch.frombuffer(bytearray(text.encode() + b" "), dtype=torch.uint8)
    lengths = party.gathered(torch.tensor([raw.numel()], dtype=torch.int64, device="cpu")).flatten().tolist()
    padded = torch.zeros(max(lengths), dtype=torch.uint8, device="cpu")
    padded[: raw.numel()] = raw
    rows = party.gathered(padded)
    return [bytes(row[: length - 1].numpy()).decode() for row, length in zip(rows, lengths, strict=True)]
