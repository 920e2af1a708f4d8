"""Which part of a tensor a worker holds.

A sharded tensor is cut along one dimension into as many parts as there are workers, as ``torch.chunk`` does: all parts
are as long as the first, but the last ones may be shorter or empty. When the number of workers changes, each new part
is made of pieces of old ones; which ones is plain arithmetic on ranges, and all of it is here.

Pure but for the type of a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

Region = tuple[tuple[int, int], ...]
"""A box in a tensor: (start, stop) for each of its dimensions."""


@dataclass(frozen=True)
class Cut:
    """A tensor's ``shape`` and the dimension that it is cut along; None: every worker has all of it."""

    shape: tuple[int, ...]
    dim: int | None

    def region(self, parts: int, index: int) -> Region:
        """The box that part ``index`` of ``parts`` is."""
        whole = [(0, size) for size in self.shape]
        if self.dim is not None:
            whole[self.dim] = chunk(self.shape[self.dim], parts, index)
        return tuple(whole)


def chunk(size: int, parts: int, index: int) -> tuple[int, int]:
    """Range of part ``index`` when ``size`` rows are cut into ``parts``, as ``torch.chunk`` cuts."""
    length = -(-size // parts)
    return min(size, index * length), min(size, (index + 1) * length)


def shape_of(region: Region) -> tuple[int, ...]:
    """Size of a box in each dimension."""
    return tuple(stop - start for start, stop in region)


def numel(region: Region) -> int:
    """Elements in a box."""
    count = 1
    for start, stop in region:
        count *= stop - start
    return count


def copy_common(target: Tensor, target_region: Region, source: Tensor, source_region: Region) -> None:
    """Copy what two parts of one tensor have in common.

    Args:
        target: Of the shape of ``target_region``; written to.
        target_region: Where in the whole tensor ``target`` lies.
        source: Of the shape of ``source_region``.
        source_region: Where in the whole tensor ``source`` lies.
    """
    common = [(max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(target_region, source_region, strict=True)]
    if any(start >= stop for start, stop in common):
        return
    target[_within(common, target_region)] = source[_within(common, source_region)].to(target.device)


def _within(box: Sequence[tuple[int, int]], region: Region) -> tuple[slice, ...]:
    return tuple(slice(start - at, stop - at) for (start, stop), (at, _) in zip(box, region, strict=True))
