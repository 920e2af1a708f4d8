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

from rex_operator.planning.statistics import Sample, autocorrelation_time, mann_whitney, medians, of_others, spread
from rex_operator.planning.windows import GroupStep

RECENT = 8
"""Independent steps that must show the new speed; dependent ones count for less, so more of them are asked for."""
SPANS = (RECENT, 3 * RECENT, 9 * RECENT)
"""Stretches that may be new: steps can be so short that many pass between two looks."""
PAST = 60
"""Steps before them that they are compared with, at most."""
RATIO = 1.15
"""A change of a worker's compute time, relative to that of the others, that matters."""
CLEAR = 4.0
"""... and stand out of its noise by so many standard errors, the dependence of neighbouring steps counted in."""
ALPHA = 1e-3
"""One-sided level, shared among the workers."""

_MANY = 64
_DEPENDENT = 9.0


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """A worker's compute time changed by ``ratio`` at ``step``, against the other workers' change."""

    worker: int
    """Index in the window's order."""
    ratio: float
    p: float
    step: int


def find_change(steps: Sequence[GroupStep]) -> SpeedChange | None:
    """Return the change of one worker's speed within the window's last steps, or None.

    Needs `RECENT` steps after and as many before the change.
    """
    times = np.log(np.maximum([s.compute_s for s in steps[-(SPANS[-1] + PAST) :]], 1e-9))
    for recent in SPANS:
        if len(times) < recent + RECENT:
            break
        suspect, ratio = _suspect(times, recent)
        if abs(ratio) < math.log(RATIO):
            continue
        before, after = times[:-recent][-PAST:, suspect], times[-recent:, suspect]
        tau = autocorrelation_time([before])
        noise = 1.2533 * spread(before) * math.sqrt(tau * (1 / recent + 1 / before.size))
        if recent < RECENT * min(tau, _DEPENDENT) or abs(ratio) < CLEAR * noise:
            continue
        test = mann_whitney(after, before)
        p = test.p_greater if ratio > 0 else test.p_less
        if p <= ALPHA / times.shape[1]:
            begin = _since(times[:, suspect], recent, ratio)
            return SpeedChange(suspect, math.exp(ratio), p, steps[len(steps) - len(times) + begin].step)
    return None


def _suspect(times: Sample, recent: int) -> tuple[int, float]:
    """Return the worker whose log time changed most against the others, and by how much."""
    moved = medians(times[-recent:]) - medians(times[:-recent][-PAST:])
    relative = moved - _of_others(moved)
    suspect = int(np.argmax(np.abs(relative)))
    return suspect, float(relative[suspect])


def _since(series: Sample, recent: int, ratio: float) -> int:
    """Return the index from which on the series stays on the new side of the middle between old and new."""
    middle = (np.median(series[:-recent]) + np.median(series[-recent:])) / 2
    old = np.flatnonzero(series[:-recent] <= middle if ratio > 0 else series[:-recent] >= middle)
    return int(old[-1]) + 1 if old.size else len(series) - recent


def _of_others(moved: Sample) -> Sample:
    """Return for each worker the median change of all the others; 0 for one alone."""
    if moved.size == 1:
        return np.zeros(1)
    if moved.size > _MANY:  # leaving one out of so many changes nothing
        return np.full(moved.size, np.median(moved))
    return of_others(moved[None, :]).ravel()
