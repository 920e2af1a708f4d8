"""Would a micro-batch of x samples fit in a device's memory?

A failure says nothing about speed, and nothing exact about memory: it is a bound from above, as what ran is one from
below. Peak memory grows with the batch almost like a line, which tells where it would end, but for workspaces that a
library takes at its own discretion. So the largest size that fits is a number with a distribution: around where the
line meets the device's memory if the bytes are known, otherwise a constant hazard per doubling beyond what ran, in both
cases confined to what the bounds leave.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from rex_operator.planning.curves import Array

HAZARD = 0.2
"""Of running out of memory, per doubling of the micro-batch beyond the largest that ran, where no bytes are known."""
USABLE = 0.95
"""Part of a device's memory that a plan may come to need: what leaves less is at the edge."""
SURE = 0.93
"""Chance to fit of a micro-batch that is taken without further ado, ..."""
UNHEARD = 0.8
"""... and where neither bytes nor a failure were ever told of: twice what ran. A step lost to memory is soon made up
for, passes that are not needed cost time for ever."""
_GRID = 2.0 ** (np.arange(33) / 8)
_WORKSPACE = 0.05
"""Standard deviation of the log of where the line meets the memory: workspaces, fragments, longer inputs ..."""
_PER_DOUBLING = 0.1
"""... and what each doubling from the largest size that ran to there adds."""
_FLOOR = 0.5
"""With a single size, this part of its peak is taken for what does not grow, give or take ..."""
_FLOOR_SPREAD = 0.3
"""... this much (standard deviation of the part)."""
_APART = 1.2
"""Sizes nearer than this factor make no line: the difference of their peaks is an allocator's rounding."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What is known of the largest micro-batch that fits on a worker, in samples."""

    ran: float
    """Largest that is known to fit; at least 1."""
    failed: float | None = None
    """Smallest that is known not to."""
    ceiling: float | None = None
    """No more than this is to be given, whatever fits."""
    estimate: float | None = None
    """Where the bytes measured lead to; None: not known."""
    spread: float = _WORKSPACE
    """Standard deviation of its logarithm."""

    def chance(self, micro_batch: npt.ArrayLike) -> Array:
        """Return the chance that each size fits: 1 up to what ran, 0 from what failed, falling in between."""
        x = np.asarray(micro_batch, dtype=np.float64)
        top = math.inf if self.failed is None else self.failed
        if self.ceiling is not None:
            top = min(top, math.floor(self.ceiling) + 1)
        certain, impossible = self._survival(np.array(self.ran)), self._survival(np.array(top))
        left = np.maximum(certain - impossible, 1e-12)
        between = np.clip((self._survival(np.maximum(x, self.ran)) - impossible) / left, 0.0, 1.0)
        return np.where(x >= top, 0.0, np.where(x <= self.ran, 1.0, between))

    def surely(self) -> int:
        """Return about the largest micro-batch that may be taken for one that fits; at least what ran."""
        return _surely(self)

    def _survival(self, x: Array) -> Array:
        """Return the chance that the largest size is ``x`` or more, before the bounds are looked at."""
        if self.estimate is None:
            return np.asarray(np.exp(-HAZARD * np.maximum(0.0, np.log2(np.maximum(x, 1e-9) / self.ran))))
        with np.errstate(divide="ignore"):
            return np.asarray(special.ndtr((math.log(self.estimate) - np.log(x)) / self.spread))


@functools.lru_cache(maxsize=1024)
def _surely(limits: Limits) -> int:
    sizes = np.floor(limits.ran * _GRID)
    enough = UNHEARD if limits.estimate is None and limits.failed is None else SURE
    return int(sizes[limits.chance(sizes) >= enough].max(initial=limits.ran))


def meeting(peaks: Mapping[float, float], memory: float) -> tuple[float, float] | None:
    """Return where peak bytes by micro-batch would reach ``memory`` bytes, and the standard deviation of its log.

    A line through the peaks (least squares) from sizes a factor 1.2 apart or more; with less, half of the peak is taken
    for what does not grow. None where nothing is known, or memory does not grow with the batch.
    """
    known = {size: peak for size, peak in peaks.items() if size > 0 and peak > 0}
    if not known or memory <= 0:
        return None
    sizes, peak = np.array(sorted(known)), np.array([known[size] for size in sorted(known)])
    if sizes[-1] >= _APART * sizes[0]:
        slope = float(np.polyfit(sizes, peak, 1)[0])
        slope = min(slope, float((peak / sizes).max()))  # what does not grow is not negative
        uncertain = 0.0
    else:
        slope, uncertain = (1 - _FLOOR) * float(peak[-1] / sizes[-1]), _FLOOR_SPREAD / (1 - _FLOOR)
    if slope <= 0:
        return None
    largest = float(sizes[-1])
    at = largest + (memory - float(peak[-1])) / slope
    if at <= largest:
        return largest, _WORKSPACE
    doublings = math.log2(at / largest)
    guessed = uncertain * (at - largest) / at  # the slope only matters for the way that is left
    return at, math.hypot(_WORKSPACE + _PER_DOUBLING * doublings, guessed)
