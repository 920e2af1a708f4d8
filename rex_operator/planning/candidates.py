"""Which plans can be asked for at all? Few enough to look at every one.

A continuous optimiser over whole numbers proposes known points again, rounds to what does not fit, and divides by zero
where a range is one point. Candidates are enumerated instead: sizes a fixed ratio apart within the allowed range and
within reach of what ran, each in powers of two of passes and in the fewest passes that memory allows, and for each
number of passes the largest batch that the memory holds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from rex_operator.planning.prediction import sizes_between
from rex_operator.planning.split import MOST_PASSES

STEPS_PER_DOUBLING = 4
"""Candidate batches are a factor 2^(1/4) apart: nearer ones differ by less than a trial can show."""
REACH = 2.0
"""Never further than this factor beyond what has run (C-167)."""


class Candidate(NamedTuple):
    """A plan in question. How workers synchronise would be a further field, once there is more than one way."""

    global_batch: int
    accumulation: int


@dataclass(frozen=True, slots=True)
class Range:
    """What may be tried now."""

    low: int
    high: int
    """Batches from ``low`` to ``high``, both included."""
    ran: Collection[int]
    """Batches that ran, the present one among them."""
    least: int
    """Samples that a pass of the whole team takes at least."""
    room: float
    """Samples that a pass of the whole team takes at most; infinity: no bound is known."""


def enumerate_candidates(allowed: Range, always: Collection[int], own_passes: int) -> list[Candidate]:
    """Return all candidates, ascending; sizes in ``always`` are among them if they are allowed."""
    low = max(allowed.low, math.ceil(min(allowed.ran) / REACH), allowed.least)
    high = min(allowed.high, math.floor(max(allowed.ran) * REACH))
    sizes = sizes_between(low, high, STEPS_PER_DOUBLING) | {s for s in always if low <= s <= high}
    found = {Candidate(size, passes) for size in sizes for passes in _passes(size, own_passes, allowed)}
    for passes in {p for _, p in found}:
        most = int(min(allowed.room * passes, 2.0**53))
        if low <= most <= high:
            found.add(Candidate(most, passes))
    return sorted(found)


def _passes(size: int, own: int, allowed: Range) -> Iterator[int]:
    fewest = max(1, math.ceil(size / allowed.room))
    powers = (2**i for i in range(MOST_PASSES.bit_length()))
    return (p for p in {fewest, own, *powers} if fewest <= p <= max(MOST_PASSES, own) and size >= p * allowed.least)
