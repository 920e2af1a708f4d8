"""Which worker became slow (or fast again), and since when?

In a synchronous group everyone's step time is the slowest one's, so the step time names nobody, and an average hides
the one. Compute time apart from waiting tells, but a z-score across workers cannot: among K workers it never exceeds
(K-1)/sqrt(K). So each worker is compared with its own past under the same plan, and its change with that of the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rex_operator.planning.statistics import Sample, autocorrelation_time, mann_whitney, spread
from rex_operator.planning.windows import GroupStep

RECENT = 8
"""Steps that must show the new speed."""
PAST = 40
"""Steps before them that it is compared with, at most."""
RATIO = 1.15
"""A change of a worker's compute time, relative to that of the others, that matters."""
CLEAR = 4.0
"""... and stand out of its noise by so many standard errors, the dependence of neighbouring steps counted in."""
ALPHA = 1e-3
"""One-sided level, shared among the workers."""

_MANY = 64


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """A worker's compute time changed by ``ratio`` at ``step``, against the other workers' change."""

    worker: int
    """Index in the window's order."""
    ratio: float
    p: float
    step: int


def find_change(steps: Sequence[GroupStep]) -> SpeedChange | None:
    """Return the largest change of one worker's speed within the window's steps, or None.

    Needs `RECENT` steps after and as many before the change.
    """
    if len(steps) < 2 * RECENT:
        return None
    times = np.array([s.compute_s for s in steps[-(RECENT + PAST) :]])
    times = np.log(np.maximum(times, 1e-9))
    past, recent = times[:-RECENT], times[-RECENT:]
    moved = np.median(recent, axis=0) - np.median(past, axis=0)
    workers = moved.size
    relative = moved - _of_others(moved)
    suspect = int(np.argmax(np.abs(relative)))
    before = past[:, suspect]
    noise = spread(before) * math.sqrt(autocorrelation_time([before]) * (1 / RECENT + 1 / len(before)))
    if abs(relative[suspect]) < max(math.log(RATIO), CLEAR * 1.2533 * noise):
        return None
    test = mann_whitney(recent[:, suspect], past[:, suspect])
    p = test.p_greater if relative[suspect] > 0 else test.p_less
    if p > ALPHA / workers:
        return None
    series = times[:, suspect]
    middle = (np.median(past[:, suspect]) + np.median(recent[:, suspect])) / 2
    new_side = series > middle if relative[suspect] > 0 else series < middle
    old = np.flatnonzero(~new_side[:-RECENT])
    first = int(old[-1]) + 1 if old.size else len(series) - RECENT
    return SpeedChange(suspect, float(np.exp(relative[suspect])), p, steps[len(steps) - len(series) + first].step)


def _of_others(moved: Sample) -> Sample:
    """Return for each worker the median change of all the others; 0 for one alone."""
    if moved.size == 1:
        return np.zeros(1)
    if moved.size > _MANY:  # leaving one out of so many changes nothing
        return np.full(moved.size, np.median(moved))
    return np.array([np.median(np.delete(moved, i)) for i in range(moved.size)])
