"""Which worker trains on which samples, so that each sample counts exactly once however the group changes.

The usual per-rank samplers remember how far each rank came; after a resize that is worthless, and samples are lost
or seen twice. Here the whole state of the data is a ``Position``: (seed, epoch, offset). A step takes the next
``global batch`` entries of the epoch's permutation, and the plan decides who takes which part of them. Nothing else
is remembered, so a step that was not applied is simply taken again, by whoever is there then, and a checkpoint
serves any world size.

Pure: neither torch nor any I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Position:
    """How far the data is used up: ``offset`` samples of ``epoch`` have been applied."""

    seed: int
    epoch: int = 0
    offset: int = 0

    def take(self, size: int, global_batch: int) -> int:
        """Samples of the next step: ``global_batch``, or what is left of the ``size`` samples of the epoch."""
        return min(global_batch, size - self.offset)

    def advance(self, count: int, size: int) -> Position:
        """Return the position after ``count`` samples were applied; the epoch's last sample opens the next epoch."""
        offset = self.offset + count
        if count < 1 or offset > size:
            raise ValueError(f"a step of {count} samples does not fit: {self.offset} of {size} are used")
        return replace(self, epoch=self.epoch + 1, offset=0) if offset == size else replace(self, offset=offset)


def permutation(seed: int, epoch: int, size: int) -> Indices:
    """Order of the samples in an epoch: shape (size,), the same on every worker, another one in each epoch."""
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(size)


def split_in_proportion(total: int, shares: Sequence[int]) -> list[int]:
    """Split ``total`` like ``shares`` (largest remainder; ties go to the first): whole numbers that sum to ``total``.

    With ``total`` no more than the sum of the shares, nobody gets more than its share.
    """
    whole = sum(shares)
    parts = [total * share // whole for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: (-(total * shares[i] % whole), i))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts


def without_singles(parts: Sequence[int], shares: Sequence[int]) -> list[int]:
    """Give the only sample of a rank to another one that has some and room for more; nobody gets more than its share.

    Batch normalisation cannot train on one sample. Where all others are full, it stays.
    """
    parts = list(parts)
    for rank, part in enumerate(parts):
        if part == 1:
            others = [i for i in range(len(parts)) if i != rank and 0 < parts[i] < shares[i]]
            if others:
                parts[rank] = 0
                parts[min(others, key=lambda i: parts[i] / shares[i])] += 1
    return parts


def micro_batches(indices: Indices, accumulation: int, ceiling: int | None = None, smallest: int = 1) -> list[Indices]:
    """Cut a worker's samples of one step into passes of nearly equal size.

    There are ``accumulation`` passes: fewer when one would have less than ``smallest`` samples, more when one would
    exceed ``ceiling``.
    """
    passes = max(1, min(accumulation, len(indices) // smallest))
    if ceiling is not None:
        passes = max(passes, -(-len(indices) // ceiling))
    return np.array_split(indices, passes)


class EpochOrder:
    """The permutation of the epoch at hand, kept because all steps of the epoch read it."""

    def __init__(self, size: int, pairs: bool = False) -> None:
        """``pairs``: in a short step give nobody a single sample, if that can be avoided."""
        if size < 1:
            raise ValueError("a dataset needs at least one sample")
        self.size = size
        self._pairs = pairs
        self._key: tuple[int, int] | None = None
        self._order: Indices = np.empty(0, dtype=np.int64)

    def step(self, position: Position, local_batches: Sequence[int]) -> list[Indices]:
        """Return each rank's sample indices of the next step, in rank order; the last step of an epoch may be short."""
        key = (position.seed, position.epoch)
        if key != self._key:
            self._order, self._key = permutation(position.seed, position.epoch, self.size), key
        global_batch = sum(local_batches)
        total = position.take(self.size, global_batch)
        parts = list(local_batches) if total == global_batch else split_in_proportion(total, local_batches)
        if self._pairs and total < global_batch:
            parts = without_singles(parts, local_batches)
        ends = position.offset + np.cumsum(parts)
        return [self._order[end - part : end] for part, end in zip(parts, ends, strict=True)]
