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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import optimize, special, stats

from rex_operator.planning.statistics import (
    Sample,
    Shift,
    autocorrelation_time,
    block_medians,
    dependence_left,
    hodges_lehmann,
    paired_windows,
    smallest_p,
    spread,
    usable,
)
from rex_operator.planning.types import Evidence

MIN_BLOCKS = 8
"""Block medians a side that a look should have before it is taken."""
_FRACTIONS = 20
"""Information fractions are rounded down to twentieths, for the levels to be computed once."""
_MOST_BLOCKS = 500
"""More make no verdict surer, only slower."""

CERTAIN = 8
"""Block medians a side that show any difference that is there at the strictest levels, if all lie apart."""
APART = 8.0
FAR = 0.15
"""Least difference of the logarithms of two windows that dependence is not asked about. Ours, as the one before."""
_INDEPENDENT = 1.05
"""Autocorrelation times below this are taken for none."""

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


def longer(usual: float, strict: float) -> float:
    """Return by what factor windows grow for a ``strict`` one-sided level to have the power of the ``usual`` one.

    Of a normal test with a power of .9; 1 if the level is no stricter.
    """
    beyond = float(special.ndtri(0.9))
    ratio = (beyond - float(special.ndtri(strict))) / (beyond - float(special.ndtri(usual)))
    return max(1.0, ratio) ** 2


def block_length(*series: Sample) -> int:
    """Return how many steps a block needs: twice the integrated autocorrelation time, 1 if steps are independent."""
    return _block_length(autocorrelation_time(series))


def _block_length(tau: float) -> int:
    return 1 if tau < _INDEPENDENT else math.ceil(2 * tau)


@dataclass(frozen=True, slots=True)
class Levels:
    """One-sided levels of a look."""

    better: float
    worse: float


def judge(reference: Sample, trial: Sample, level: float, min_effect: float, look: int = 1) -> Judgement:
    """Compare the times per useful sample of two windows (lower is better), each in the order of the steps.

    ``level`` is the one-sided level of this look, ``min_effect`` the relative gain (loss) below which a difference does
    not matter. The verdict is ``open`` when the data cannot tell: too few blocks to ever reach the level, too many
    values removed, or simply no difference to be seen.
    """
    return judge_pairs([(reference, trial)], Levels(level, level), min_effect, look)


def beyond_dependence(reference: Sample, trial: Sample) -> bool:
    """Return whether two windows lie so far apart that no dependence within them explains it.

    Dependent steps are worth fewer independent ones, at worst a single one: two windows of one and the same plan then
    still differ only as two values do. So all values of one lie below all of the other, and their medians are apart by
    `APART` times the larger spread of single steps and by `FAR`. How long blocks should be does not matter any more.
    """
    old, new = np.log(usable(reference)[0]), np.log(usable(trial)[0])
    if min(old.size, new.size) < CERTAIN:
        return False
    separated = new.max() < old.min() or new.min() > old.max()
    distance = abs(float(np.median(new) - np.median(old)))
    return bool(separated and distance >= max(FAR, APART * max(spread(old), spread(new))))


def judge_pairs(pairs: Sequence[tuple[Sample, Sample]], levels: Levels, min_effect: float, look: int = 1) -> Judgement:
    """Compare as `judge` does, within each pair (reference, trial) of neighbouring windows.

    The effect is the mean over the pairs: with the incumbent before and after the trial, steady drift adds to one what
    it takes from the other. Each pair alone must show half of ``min_effect``.
    """
    cleaned = [(usable(reference), usable(trial)) for reference, trial in pairs]
    removed = sum(old[1] + new[1] for old, new in cleaned)
    logs = [(np.log(new[0]), np.log(old[0])) for old, new in cleaned]
    if not all(x.size and y.size for x, y in logs):
        return Judgement("open", None, removed)
    longest = max(s.size for pair in logs for s in pair)
    tau = autocorrelation_time([s for pair in logs for s in pair])
    block = min(max(_block_length(tau), math.ceil(longest / _MOST_BLOCKS)), *(s.size for pair in logs for s in pair))
    inflation = 1.0 if tau < _INDEPENDENT else dependence_left(tau, block)
    if all(beyond_dependence(old[0], new[0]) for old, new in cleaned):
        shortest = min(s.size for pair in logs for s in pair)
        block, inflation = min(block, max(1, shortest // CERTAIN)), 1.0
    blocks = [(block_medians(x, block), block_medians(y, block)) for x, y in logs]
    test = paired_windows(blocks, inflation)
    shifts = [hodges_lehmann(x, y) for x, y in blocks]
    shift, below, above = _mean(shifts, inflation)
    gain = _relative(-shift)
    evidence = Evidence(
        p_better=test.p_less,
        p_worse=test.p_greater,
        effect=gain,
        interval=(_relative(-shift - above), _relative(-shift + below)),
        a12=test.a12,
        n_reference=sum(y.size for _, y in logs),
        n_trial=sum(x.size for x, _ in logs),
        block=block,
        look=look,
        alpha=levels.better,
    )
    reachable = math.prod(smallest_p(x.size, y.size) for x, y in blocks)
    # A jump between two windows, as at the end of a long warm-up, is in one pair only: all pairs must show the gain.
    agreed = all(_relative(-s.estimate) >= min_effect / 2 for s in shifts)
    trustworthy = all(old[1] <= old[0].size and new[1] <= new[0].size for old, new in cleaned)
    verdict: Verdict = "open"
    if trustworthy and reachable <= levels.better and test.p_less <= levels.better and gain >= min_effect:
        verdict = "better" if agreed else "open"
    elif trustworthy and reachable <= levels.worse and test.p_greater <= levels.worse:
        verdict = "worse" if _relative(shift) >= min_effect else "open"
    return Judgement(verdict, evidence, removed)


def compare_with_both(
    before: Sample, trial: Sample, after: Sample, levels: Levels, min_effect: float, look: int = 2
) -> Judgement:
    """Compare a trial with the incumbent before and after it: each half of it with its neighbour.

    The two windows of the incumbent should be of one length: then steady drift cancels.
    """
    half = trial.size // 2
    judgement = judge_pairs([(before, trial[:half]), (after, trial[half:])], levels, min_effect, look)
    (old, _), (new, _) = usable(before), usable(after)
    if judgement.evidence is None:
        return judgement
    drift = _relative(float(np.median(np.log(new)) - np.median(np.log(old))))
    return replace(judgement, evidence=judgement.evidence.model_copy(update={"switchback": True, "drift": drift}))


def explained_by_drift(reference: Sample, judgement: Judgement, min_effect: float, gap: int = 0) -> bool:
    """Return whether the reference drifts so that going on like this could bring forth what was seen.

    Judged by how much its second half may at most differ from its first (95 % interval), carried on to the middle of
    the trial, against what the effect has beyond the margin. ``gap``: steps between the two that nobody compares.
    """
    times = np.log(usable(reference)[0])
    half, evidence = times.size // 2, judgement.evidence
    if half < 2 or evidence is None:
        return False
    block = min(evidence.block, half)
    trend = hodges_lehmann(block_medians(times[half:], block), block_medians(times[:half], block))
    most = -trend.low if evidence.effect > 0 else trend.high
    halves = ((times.size + evidence.n_trial) / 2 + gap) / half
    return most * halves > abs(evidence.effect) - min_effect


def _mean(shifts: Sequence[Shift], inflation: float) -> tuple[float, float, float]:
    """Return the mean of independent shifts, and how far its interval reaches below and above."""
    mean = sum(s.estimate for s in shifts) / len(shifts)
    wider = math.sqrt(inflation) / len(shifts)
    below = wider * math.sqrt(sum((s.estimate - s.low) ** 2 for s in shifts))
    above = wider * math.sqrt(sum((s.high - s.estimate) ** 2 for s in shifts))
    return mean, below, above


def _relative(log_ratio: float) -> float:
    return math.expm1(min(log_ratio, 50.0))
