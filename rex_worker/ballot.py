"""Votes that travel inside a bucket of gradients.

A small collective takes as long as a large one where latency rules, so a second one per step, only for the votes, would
double what a step of a small model waits. One sum can do both: behind the gradients lies a zone with a slot for each
rank; everybody writes its vote into its own slot and zeros into the others', and the sum is the list of all votes.

A vote's float64 numbers travel as bytes, one element each: 0..255 is exact in every type that gradients have (bfloat16
too), and adding zeros keeps it so.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
from torch import Tensor

_BYTES = 8


def zone_size(ranks: int, numbers: int) -> int:
    """Elements of a zone in which each of ``ranks`` casts a vote of so many ``numbers``."""
    return ranks * numbers * _BYTES


def cast(zone: Tensor, rank: int, vote: Sequence[float]) -> None:
    """Write this rank's vote into its slot of ``zone``, shape (zone_size,), and zeros into the others."""
    raw = torch.frombuffer(bytearray(struct.pack(f"={len(vote)}d", *vote)), dtype=torch.uint8)
    zone.zero_()
    zone[rank * len(raw) : (rank + 1) * len(raw)].copy_(raw)


def count(zone: Tensor, ranks: int) -> list[list[float]]:
    """Read the votes of all ranks from the summed ``zone``."""
    votes: list[list[float]] = zone.view(ranks, -1).to("cpu", torch.uint8).view(torch.float64).tolist()
    return votes
