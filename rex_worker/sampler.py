"""Which worker trains on which samples, so that each sample counts exactly once however the group changes.

The usual per-rank samplers remember how far each rank came; after a resize that is worthless, and samples are lost or
seen twice. Here the whole state of the data is a ``Position``: (seed, epoch, offset). A step takes the next ``global
batch`` entries of the epoch's permutation, and the plan decides who takes which part of them. Nothing else is
remembered, so a step that was not applied is simply taken again, by whoever is there then, and a checkpoint serves
any world size.

Samples are named by their place in the epoch's order, a permutation or a stream's own order, so that a micro-batch is
told by two numbers and what was fetched ahead of time can be recognised when it is wanted.

Pure: neither torch nor any I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

FILLER_SAMPLES = 2
"""A worker without a share in a step computes on this many samples, with weight 0 (one alone upsets batch norm)."""


@dataclass(frozen=True)
class Position:
    """How far the data is used up: ``offset`` samples of ``epoch`` have been applied."""

    seed: int
    epoch: int = 0
    offset: int = 0

    def advance(self, count: int, *, ends_epoch: bool) -> Position:
        """Return the position after ``count`` samples were applied; the epoch's last sample opens the next epoch."""
        if count < 1:
            raise ValueError(f"a step of {count} samples cannot be applied")
        if ends_epoch:
            return Position(self.seed, self.epoch + 1)
        return Position(self.seed, self.epoch, self.offset + count)


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


def micro_batches(count: int, accumulation: int, ceiling: int | None = None, smallest: int = 1) -> list[int]:
    """Sizes of the passes in which a worker takes its ``count`` samples of one step; they differ by one at most.

    There are ``accumulation`` passes: fewer when one would have less than ``smallest`` samples, more when one would
    exceed ``ceiling``.
    """
    passes = max(1, min(accumulation, count // smallest))
    if ceiling is not None:
        passes = max(passes, -(-count // ceiling))
    size, larger = divmod(count, passes)
    return [size + 1] * larger + [size] * (passes - larger)


@dataclass(frozen=True)
class MicroBatch:
    """The samples of one pass: those at ``start`` to ``stop`` in the order of ``epoch``."""

    epoch: int
    start: int
    stop: int
    filler: bool = False
    """For a worker without a share: the sample at ``start``, ``FILLER_SAMPLES`` times, which counts for nothing."""

    def __len__(self) -> int:
        return FILLER_SAMPLES if self.filler else self.stop - self.start


@dataclass(frozen=True)
class Layout:
    """One step as one worker takes it."""

    passes: tuple[MicroBatch, ...]
    share: int
    """This worker's samples; 0: its only pass is a filler."""
    total: int
    """The group's samples."""
    ends_epoch: bool
    mark: int = 0
    """Checksum of what a stream gave, to be the same on all workers; below 2**32."""


@dataclass(frozen=True)
class Outlook:
    """What the next step is made from; the steps after it, too, for as long as plan and group stay."""

    position: Position
    local_batches: tuple[int, ...]
    """The plan's samples per step, in rank order."""
    rank: int
    accumulation: int = 1
    """Passes in which the plan has this worker take its share; others may have other numbers, if not ``together``."""
    ceiling: int | None = None
    """Largest micro-batch that this worker's memory holds, once it was found out."""
    pairs: bool = False
    """No micro-batch of one sample, if that can be avoided."""
    together: bool = False
    """Every worker runs as many passes as the one with the most: what it lacks are fillers. Then all have the same
    ``accumulation`` and ``ceiling``."""

    @property
    def global_batch(self) -> int:
        """Samples of a whole step."""
        return sum(self.local_batches)

    def cut(self, share: int) -> list[int]:
        """Sizes of this worker's passes with a share of ``share`` samples."""
        return micro_batches(share, self.accumulation, self.ceiling, smallest=1 + self.pairs)

    def lay_out(self, left: int, mark: int = 0) -> Layout:
        """Lay the step out with ``left`` samples left in the epoch; its last step may be short."""
        position, global_batch = self.position, self.global_batch
        if left < 1:
            raise ValueError(f"no samples are left in epoch {position.epoch} at {position.offset}")
        total = min(global_batch, left)
        parts: Sequence[int] = self.local_batches
        if total < global_batch:
            parts = split_in_proportion(total, parts)
            if self.pairs:
                parts = without_singles(parts, self.local_batches)
        share, start = parts[self.rank], position.offset + sum(parts[: self.rank])
        edges = list(accumulate(self.cut(share) if share else [], initial=start))
        passes = tuple(MicroBatch(position.epoch, a, b) for a, b in pairwise(edges))
        least = max(len(self.cut(part)) for part in parts if part) if self.together else 1
        filler = MicroBatch(position.epoch, position.offset, position.offset + 1, filler=True)
        passes += (filler,) * (least - len(passes))
        return Layout(passes, share, total, ends_epoch=total == left, mark=mark)

    def after(self, layout: Layout) -> Outlook:
        """Return what follows when ``layout`` is applied and nothing else changes."""
        return replace(self, position=self.position.advance(layout.total, ends_epoch=layout.ends_epoch))


class EpochOrder:
    """Which sample is at which place of an epoch: a permutation, or the dataset's own order."""

    def __init__(self, size: int, *, shuffle: bool = True) -> None:
        if size < 1:
            raise ValueError("a dataset needs at least one sample")
        self.size = size
        self._shuffle = shuffle
        self._key: tuple[int, int] | None = None
        self._order: Indices = np.empty(0, dtype=np.int64)

    def rows(self, seed: int, part: MicroBatch) -> Indices:
        """Return the indices of a micro-batch's samples: shape (len(part),)."""
        if not self._shuffle:
            rows = np.arange(part.start, part.stop)
        else:
            if (seed, part.epoch) != self._key:
                # Kept, because all steps of the epoch read it.
                self._order, self._key = permutation(seed, part.epoch, self.size), (seed, part.epoch)
            rows = self._order[part.start : part.stop]
        return rows.repeat(FILLER_SAMPLES) if part.filler else rows
