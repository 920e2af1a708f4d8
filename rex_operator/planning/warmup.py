"""Where does a window begin to tell the truth?

The first steps after any change (start, resize, other batch, checkpoint) are slow for reasons that have nothing to do
with the plan: compilation, allocator growth, autotuning, cold caches. A fixed discard is either too short for those or
wasteful for the rest. So a fixed number is dropped first, then blocks until the series has settled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rex_operator.planning.statistics import Sample, trendless_median_error

BLOCK = 5
"""Steps per block of the settling check."""
TOLERANCE = 0.01
"""Two consecutive block medians this close mean: settled. A noisier series gets the tolerance its noise needs ..."""
WIDEST = 0.10
"""... but never more than this."""
MOST_BLOCKS = 12
"""After so many blocks the series is taken as it is: it drifts, and waiting does not help."""


def settled_from(steps: Sequence[int], times: Sample, first: int, warmup_steps: int) -> int | None:
    """Return the first step number that counts; None while the series has not settled yet.

    ``steps`` ascend, may have gaps and follow a change at step ``first``; ``times`` are seconds. The first
    ``warmup_steps`` numbers are dropped, then blocks of ``BLOCK`` steps until the medians of two consecutive ones
    agree; these two count. ``warmup_steps`` 0 switches the whole check off.
    """
    if not steps:
        return None
    if warmup_steps == 0:
        return first
    offset = int(np.searchsorted(np.asarray(steps), first + warmup_steps))
    rest = times[offset:]
    blocks = [rest[i * BLOCK : (i + 1) * BLOCK] for i in range(min(MOST_BLOCKS + 1, rest.size // BLOCK))]
    for index in range(len(blocks) - 1):
        if _agree(blocks[index], blocks[index + 1]):
            return steps[offset + index * BLOCK]
    if len(blocks) > MOST_BLOCKS:
        return steps[offset + MOST_BLOCKS * BLOCK]
    return None


def _agree(first: Sample, second: Sample) -> bool:
    low, high = sorted((float(np.median(first)), float(np.median(second))))
    if not (math.isfinite(high) and low > 0):
        return False
    noise = 2 * math.hypot(trendless_median_error(first), trendless_median_error(second)) / low
    return (high - low) / low <= min(max(TOLERANCE, noise), WIDEST)
