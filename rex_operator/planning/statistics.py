"""Small nonparametric statistics whose failure modes are known and closed.

Step times are skewed, tied (coarse timers), autocorrelated and now and then not finite, and the library functions for
them answer such input with a silent "no difference", an exception or a number that differs between versions. Here each
question has one fixed method, bad values are removed and counted, and what a sample is too small to show is a number
(`smallest_p`) rather than a verdict of "equal".

All samples are one-dimensional; p-values are one-sided.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special, stats

Sample = npt.NDArray[np.float64]

EXACT_UP_TO = 8
"""The exact null distribution is used when the smaller sample has at most this many values, ties included."""
_EXACT_TOTAL = 400
"""... and both together at most this many, which bounds the enumeration to milliseconds."""


@dataclass(frozen=True, slots=True)
class RankTest:
    """Outcome of a Mann-Whitney test of x against y."""

    p_less: float
    """Chance of ranks at least this low for x, were both of one distribution: small = x is lower."""
    p_greater: float
    a12: float
    """Vargha-Delaney A = P(x < y) + P(x = y)/2: chance that a value of x is the lower one."""


@dataclass(frozen=True, slots=True)
class Shift:
    """A Hodges-Lehmann shift x - y with its confidence interval, in the samples' units."""

    estimate: float
    low: float
    high: float


def usable(values: Iterable[float]) -> tuple[Sample, int]:
    """Return the finite positive values in their order, and how many others there were."""
    sample = np.asarray(values if isinstance(values, np.ndarray) else list(values), dtype=np.float64)
    good = np.isfinite(sample) & (sample > 0)
    return sample[good], int(sample.size - good.sum())


def smallest_p(n: int, m: int) -> float:
    """Return the smallest one-sided p that n against m values can reach: 1 / C(n+m, n); 1.0 if one side is empty."""
    return 1.0 / math.comb(n + m, n) if n and m else 1.0


def mann_whitney(x: Sample, y: Sample) -> RankTest:
    """Test x against y both ways (Mann & Whitney 1947).

    The null distribution is enumerated (ties too) for small samples; otherwise normal with tie and continuity
    correction. Raises ``ValueError`` on an empty or non-finite sample: use `usable` first.
    """
    ranks = _pooled_ranks(x, y)
    n, m = x.size, y.size
    u_x = float(ranks[:n].sum()) - n * (n + 1) / 2
    a12 = 1.0 - u_x / (n * m)
    if ranks.max() == ranks.min():
        return RankTest(1.0, 1.0, 0.5)
    if min(n, m) <= EXACT_UP_TO and n + m <= _EXACT_TOTAL:
        p_less, p_greater = _exact(ranks, n)
    else:
        p_less, p_greater = _normal(u_x - n * m / 2, 0.5, _variance(ranks, n))
    return RankTest(min(p_less, 1.0), min(p_greater, 1.0), a12)


def paired_windows(pairs: Sequence[tuple[Sample, Sample]], inflation: float = 1.0) -> RankTest:
    """Test x against y within each pair (x, y), all pairs together (van Elteren 1960): levels of pairs may differ.

    Rank sums are weighted by 1 / (n + m + 1), the best weights for a common shift; the null distribution is normal, its
    variance times ``inflation`` where neighbouring values still depend on each other (`dependence_left`). One pair of
    independent values is `mann_whitney`. Raises ``ValueError`` as that does.
    """
    if len(pairs) == 1 and inflation <= 1:
        return mann_whitney(*pairs[0])
    off = variance = largest = step = 0.0
    for x, y in pairs:
        ranks = _pooled_ranks(x, y)
        n, m = x.size, y.size
        weight = 1 / (n + m + 1)
        off += weight * (float(ranks[:n].sum()) - n * (n + m + 1) / 2)
        variance += weight**2 * _variance(ranks, n)
        largest += weight * n * m / 2
        step = max(step, weight / 2)
    if variance <= 0:
        return RankTest(1.0, 1.0, 0.5)
    p_less, p_greater = _normal(off, step, variance * inflation)
    return RankTest(min(p_less, 1.0), min(p_greater, 1.0), 0.5 - off / (2 * largest))


def _pooled_ranks(x: Sample, y: Sample) -> Sample:
    if not x.size or not y.size:
        raise ValueError("a rank test needs at least one value on each side")
    pooled = np.concatenate([x, y])
    if not np.isfinite(pooled).all():
        raise ValueError("a rank test takes finite values only; remove the others first")
    return np.asarray(stats.rankdata(pooled))


def _variance(ranks: Sample, n: int) -> float:
    """Variance of the sum of ``n`` of these mid-ranks; ties lower it."""
    size = ranks.size
    return n * (size - n) / size / (size - 1) * float(((ranks - (size + 1) / 2) ** 2).sum())


def _normal(off: float, correction: float, variance: float) -> tuple[float, float]:
    """Both tails of a rank sum that lies ``off`` its expectation."""
    scale = math.sqrt(2 * variance)
    return 0.5 * math.erfc((-off - correction) / scale), 0.5 * math.erfc((off - correction) / scale)


def _exact(ranks: Sample, n: int) -> tuple[float, float]:
    """Enumerate the rank sums of all subsets by counting; mid-ranks are doubled to stay whole numbers."""
    doubled = np.rint(2 * ranks).astype(np.int64)
    total = int(doubled.sum())
    observed = int(doubled[:n].sum())
    size = n
    if n > doubled.size - n:  # the rank sum of the smaller sample says the same and is quicker to enumerate
        size, observed = doubled.size - n, total - observed
    top = int(np.sort(doubled)[-size:].sum())
    ways = np.zeros((size + 1, top + 1))
    ways[0, 0] = 1.0
    for rank in doubled:
        ways[1:, rank:] += ways[:-1, : top + 1 - rank].copy()
    counts = ways[size] / math.comb(doubled.size, size)
    low, high = float(counts[: observed + 1].sum()), float(counts[observed:].sum())
    return (low, high) if size == n else (high, low)


def dependence_left(tau: float, block: int) -> float:
    """Return by how much the variance of a mean of block means exceeds that of independent blocks.

    For a first-order autoregressive series with the integrated autocorrelation time ``tau``, from its autocovariances:
    blocks of twice that time still leave a quarter to a third.
    """
    rho = (tau - 1) / (tau + 1)
    if rho <= 0 or block < 2:
        return max(1.0, tau)
    within = tau - 2 * rho * (1 - rho**block) / (block * (1 - rho) ** 2)
    return max(1.0, tau / within)


def hodges_lehmann(x: Sample, y: Sample, confidence: float = 0.95) -> Shift:
    """Return the median of all differences x_i - y_j with the interval of the ranked differences (Hodges & Lehmann).

    Takes time and memory in n x m: bring long samples down to block medians before.
    """
    differences = np.sort(np.subtract.outer(x, y), axis=None)
    n, m = x.size, y.size
    z = -float(special.ndtri(0.5 - confidence / 2))
    edge = max(0, math.floor(n * m / 2 - z * math.sqrt(n * m * (n + m + 1) / 12)))
    return Shift(float(np.median(differences)), float(differences[edge]), float(differences[n * m - 1 - edge]))


def autocorrelation_time(series: Sequence[Sample]) -> float:
    """Return the integrated autocorrelation time in steps, 1.0 for independent values, pooled over the series.

    1 + 2 sum rho_k, summed while the lag is below 5 times the running value (Sokal's window). Short series understate
    dependence, so the result is at least what an AR(1) process with the (bias-corrected) first lag would have. A steady
    drift is not dependence: it is taken out before.
    """
    centred = [_level(s) for s in series if s.size >= 4]
    longest = max((s.size for s in centred), default=0)
    count = sum(s.size for s in centred)
    sums, pairs = np.zeros(longest), np.zeros(longest)
    for s in centred:
        spectrum = np.abs(np.fft.rfft(s, 2 * s.size)) ** 2
        sums[: s.size] += np.fft.irfft(spectrum)[: s.size]
        pairs[: s.size] += np.arange(s.size, 0, -1)
    if not centred or sums[0] <= 0:
        return 1.0
    rho = (sums / sums[0] * count / pairs)[1 : longest // 2 + 1]
    running = 1 + 2 * np.cumsum(rho)
    enough = np.flatnonzero(np.arange(1, rho.size + 1) >= 5 * running)
    tau = running[enough[0]] if enough.size else running[-1]
    # Kendall (1954) for a series less its mean; less its trend it is about this (checked by simulation).
    corrected = min(0.95, rho[0] + (2 + 4 * rho[0]) / (count / len(centred)))
    return float(max(1.0, tau, (1 + corrected) / (1 - corrected)))


def _level(series: Sample) -> Sample:
    """Return the series less its straight trend."""
    t = np.arange(series.size) - (series.size - 1) / 2
    rest = series - series.mean() - t * float(t @ series) / float(t @ t)
    rounding = 1e-12 * float(np.abs(series).max())
    return np.asarray(np.where(np.abs(rest) <= rounding, 0.0, rest))


def block_medians(sample: Sample, length: int) -> Sample:
    """Return the medians of consecutive blocks; what is left over at the front (the oldest) is dropped."""
    blocks = sample.size // length
    return np.asarray(np.median(sample[sample.size - blocks * length :].reshape(blocks, length), axis=1))


def spread(sample: Sample) -> float:
    """Return a robust standard deviation: the scaled median absolute deviation (it may be 0 for a coarse timer)."""
    return 1.4826 * float(medians(np.abs(sample - medians(sample)))) if sample.size else 0.0


def medians(rows: Sample) -> Sample:
    """Return the median over the first axis: of each column, or of a single series. For finite values, one at least.

    What ``np.median`` returns, several times as fast for the few values that most questions are about.
    """
    ordered, middle = np.sort(rows, axis=0), len(rows) // 2
    return np.asarray(ordered[middle] if len(rows) % 2 else (ordered[middle - 1] + ordered[middle]) / 2)


def of_others(rows: Sample) -> Sample:
    """Return for each entry the median of all the others in its row (two at least per row)."""
    count = rows.shape[1]
    ordered, rank = np.sort(rows, axis=1), rows.argsort(axis=1).argsort(axis=1)

    def left(place: int) -> Sample:
        """The entry at ``place`` of what is left without one."""
        picked: Sample = np.take_along_axis(ordered, np.where(rank > place, place, place + 1), axis=1)
        return picked

    low = left((count - 2) // 2)
    return low if count % 2 == 0 else (low + left((count - 1) // 2)) / 2


def midmeans(rows: Sample) -> Sample:
    """Return the mean of the middle half over the first axis, as `midmean` does for one series."""
    cut = len(rows) // 4
    return np.asarray(np.sort(rows, axis=0)[cut : len(rows) - cut].mean(axis=0))


def midmean(sample: Sample) -> tuple[float, float]:
    """Return the mean of the middle half and its standard error for independent values (Tukey & McLaughlin 1963).

    As deaf to outliers as a median, and steady where a median jumps: on series with two values. The error is infinite
    below 4 values.
    """
    if not sample.size:
        raise ValueError("a mean needs at least one value")
    ordered = np.sort(sample)
    cut = sample.size // 4
    middle = ordered[cut : sample.size - cut]
    if sample.size < 4:
        return float(middle.mean()), math.inf
    winsorised = np.concatenate([np.full(cut, middle[0]), middle, np.full(cut, middle[-1])])
    return float(middle.mean()), float(winsorised.std(ddof=1)) / (middle.size / sample.size * math.sqrt(sample.size))
