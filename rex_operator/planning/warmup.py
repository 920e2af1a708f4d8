"""Where does a window begin to tell the truth?

The first steps after any change (start, resize, other batch, checkpoint) are slow for reasons that have nothing to do
with the plan: compilation, allocator growth, autotuning, cold caches. A fixed discard is either too short for those or
wasteful for the rest. So a fixed number is dropped first, then blocks until the series has settled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rex_operator.planning.statistics import Sample, medians

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
    count = min(MOST_BLOCKS + 1, (times.size - offset) // BLOCK)
    blocks = times[offset : offset + count * BLOCK].reshape(count, BLOCK)
    levels, errors = medians(blocks.T).tolist(), _median_errors(blocks).tolist()
    for index in range(count - 1):
        if _agree(levels[index : index + 2], errors[index : index + 2]):
            return steps[offset + index * BLOCK]
    if count > MOST_BLOCKS:
        return steps[offset + MOST_BLOCKS * BLOCK]
    return None


def _median_errors(blocks: Sample) -> Sample:
    """Return a robust standard error of each block's median: from differences, so that a trend is no noise."""
    steps = np.diff(blocks, axis=1)
    spreads = 1.4826 * medians(np.abs(steps - medians(steps.T)[:, None]).T)
    return 1.2533 * spreads / math.sqrt(2 * BLOCK)


def _agree(levels: Sequence[float], errors: Sequence[float]) -> bool:
    low, high = sorted(levels)
    if not (math.isfinite(high) and low > 0):
        return False
    noise = 2 * math.hypot(*errors) / low
    return (high - low) / low <= min(max(TOLERANCE, noise), WIDEST)
