"""When does a change count as shown to help?

A raw test on raw step times goes wrong in four ways: neighbouring steps are alike (so there is less evidence than there
are steps), looking again until it is significant always succeeds, long windows make irrelevant differences significant,
and "not significant" is read as "equal". So the test runs on medians of blocks longer than the measured dependence, at
two looks planned beforehand that share one error budget, with a practical margin beside the p-value, and has three
answers.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import optimize, stats

from rex_operator.planning.statistics import (
    Sample,
    autocorrelation_time,
    block_medians,
    hodges_lehmann,
    mann_whitney,
    smallest_p,
    usable,
)
from rex_operator.planning.types import Evidence

MIN_BLOCKS = 8
"""Block medians a side that a look should have before it is taken."""
_FRACTIONS = 20
"""Information fractions are rounded down to twentieths, for the levels to be computed once."""
_MOST_BLOCKS = 500
"""More make no verdict surer, only slower."""

Verdict = Literal["better", "worse", "open"]


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its evidence. ``removed`` values were not finite and positive; None: no test was possible."""

    verdict: Verdict
    evidence: Evidence | None
    removed: int = 0


def look_levels(alpha: float, fraction: float) -> tuple[float, float]:
    """Return the one-sided levels of two looks, the first at ``fraction`` of the information.

    O'Brien-Fleming spending after Lan & DeMets (1983), the two-sided ``alpha`` shared equally between the directions:
    about .0028 and .0238 for alpha .05 and a half. Over both looks the chance of a false alarm in one direction is
    alpha / 2.
    """
    side = alpha / 2
    if fraction >= 1:
        return side, side
    return _two_looks(side, max(1, math.floor(fraction * _FRACTIONS)) / _FRACTIONS)


@functools.lru_cache(maxsize=256)
def _two_looks(side: float, fraction: float) -> tuple[float, float]:
    first = float(stats.norm.sf(stats.norm.isf(side) / math.sqrt(fraction)))
    bound = float(stats.norm.isf(first)) if first > 1e-12 else math.inf
    nodes, weights = np.polynomial.legendre.leggauss(200)

    def spent(z: float) -> float:
        """Chance of passing z at the second look without having passed ``bound`` at the first."""
        top = min(bound, 9.0)
        x = (top + 9.0) / 2 * nodes + (top - 9.0) / 2
        tail = stats.norm.sf((z - math.sqrt(fraction) * x) / math.sqrt(1 - fraction))
        return float((top + 9.0) / 2 * (weights @ (stats.norm.pdf(x) * tail)))

    second = optimize.brentq(lambda z: spent(z) - (side - first), -1.0, 9.0)
    return first, float(stats.norm.sf(second))


def block_length(*series: Sample) -> int:
    """Return how many steps a block needs: twice the integrated autocorrelation time, 1 if steps are independent."""
    tau = autocorrelation_time(series)
    return 1 if tau < 1.05 else math.ceil(2 * tau)


def judge(reference: Sample, trial: Sample, level: float, min_effect: float, look: int = 1) -> Judgement:
    """Compare the times per useful sample of two windows (lower is better), each in the order of the steps.

    ``level`` is the one-sided level of this look, ``min_effect`` the relative gain (loss) below which a difference does
    not matter. The verdict is ``open`` when the data cannot tell: too few blocks to ever reach the level, too many
    values removed, or simply no difference to be seen.
    """
    (ref, bad_ref), (new, bad_new) = usable(reference), usable(trial)
    removed = bad_ref + bad_new
    if not ref.size or not new.size:
        return Judgement("open", None, removed)
    longest = max(ref.size, new.size)
    old, tried = np.log(ref), np.log(new)
    block = min(max(block_length(old, tried), math.ceil(longest / _MOST_BLOCKS)), ref.size, new.size)
    x, y = block_medians(tried, block), block_medians(old, block)
    test = mann_whitney(x, y)
    shift = hodges_lehmann(x, y)
    gain = math.expm1(min(-shift.estimate, 50.0))
    evidence = Evidence(
        p_better=test.p_less,
        p_worse=test.p_greater,
        effect=gain,
        interval=(math.expm1(min(-shift.high, 50.0)), math.expm1(min(-shift.low, 50.0))),
        a12=test.a12,
        n_reference=ref.size,
        n_trial=new.size,
        block=block,
        look=look,
        alpha=level,
    )
    trustworthy = bad_ref <= ref.size and bad_new <= new.size and smallest_p(x.size, y.size) <= level
    verdict: Verdict = "open"
    if trustworthy and test.p_less <= level and gain >= min_effect:
        verdict = "better"
    elif trustworthy and test.p_greater <= level and math.expm1(min(shift.estimate, 50.0)) >= min_effect:
        verdict = "worse"
    return Judgement(verdict, evidence, removed)
