"""How long does a device take for a micro-batch of x samples?

Measured curves are short (two to eight sizes), noisy, now and then decreasing (other kernels), and asked for at sizes
that were never run. A cubic through such points oscillates and extrapolates to nonsense. Here a curve is what the field
data support (and no more): repeats merged, made monotone, joined by a shape-preserving interpolant of logarithms, and
continued outside by straight lines whose slope is drawn towards a sober prior as long as the points say little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import interpolate, optimize

Array = npt.NDArray[np.float64]

TRUST = 2.0
"""A size is trusted up to this factor outside the measured range."""
MERGE = 0.03
"""Sizes within 3 % are one size: their difference is noise, and a slope through them would be too."""
PRIOR_ELASTICITY = 0.8
"""Percent of time per percent of batch where nothing is known: mostly proportional, with a small fixed cost."""
PRIOR_SPREAD = 0.3
_REACH = 4.0
"""Points within this factor of an end shape its tail."""
_STEEPEST = 1.5
_TABLE = 129


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement: ``micro_batch`` samples took ``seconds``; ``variance`` is that of the logarithm of seconds."""

    micro_batch: float
    seconds: float
    variance: float = 1e-4


@dataclass(frozen=True)
class StepTimeCurve:
    """Seconds per micro-batch, monotone and positive everywhere.

    ``sizes`` and ``seconds`` are the merged, monotone knots; ``below`` and ``above`` the elasticities with which the
    straight tails leave the first and the last knot.
    """

    sizes: tuple[float, ...]
    seconds: tuple[float, ...]
    below: float
    above: float

    @classmethod
    def fit(cls, points: Sequence[Point]) -> StepTimeCurve:
        """Fit a curve. What is not finite and positive is dropped; raises ``ValueError`` if nothing is left."""
        good = [p for p in points if _positive(p.micro_batch) and _positive(p.seconds) and _positive(p.variance)]
        if not good:
            raise ValueError("a curve needs at least one finite point")
        log_x, log_t, weight = _merge(good)
        log_t = np.asarray(optimize.isotonic_regression(log_t, weights=weight).x)
        x, t = np.exp(log_x), np.exp(log_t)
        below = _tail(x / x[0], t / t[0], weight, steepest=1.0)
        above = _tail(x / x[-1], t / t[-1], weight, steepest=_STEEPEST)
        return cls(tuple(x.tolist()), tuple(t.tolist()), below, above)

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        """Knots of the interpolant, dense enough for linear look-up both ways; strictly increasing in both."""
        log_x, log_t = np.log(self.sizes), np.log(self.seconds)
        if log_x.size == 1:
            return log_x, log_t
        dense = np.unique(np.concatenate([np.linspace(log_x[0], log_x[-1], _TABLE), log_x]))
        values = interpolate.PchipInterpolator(log_x, log_t)(dense)
        return dense, np.maximum.accumulate(values) + 1e-9 * np.arange(dense.size)

    def time(self, micro_batch: npt.ArrayLike) -> Array:
        """Return the seconds for each size (positive, need not be whole)."""
        x = np.asarray(micro_batch, dtype=np.float64)
        log_x, log_t = self._table
        inside = np.exp(np.interp(np.log(np.maximum(x, 1e-9)), log_x, log_t))
        low = self.seconds[0] * (1 + self.below * (x / self.sizes[0] - 1))
        high = math.exp(log_t[-1]) * (1 + self.above * (x / self.sizes[-1] - 1))
        return np.where(x < self.sizes[0], low, np.where(x > self.sizes[-1], high, inside))

    def largest(self, seconds: npt.ArrayLike) -> Array:
        """Return the largest size that is done within each of ``seconds``; 0 where not even the smallest is."""
        t = np.asarray(seconds, dtype=np.float64)
        log_x, log_t = self._table
        first, last = self.seconds[0], math.exp(log_t[-1])
        inside = np.exp(np.interp(np.log(np.maximum(t, 1e-300)), log_t, log_x))
        low = self.sizes[0] * np.maximum(0.0, 1 + (t / first - 1) / self.below)
        high = self.sizes[-1] * (1 + (t / last - 1) / self.above)
        return np.where(t < first, low, np.where(t > last, high, inside))

    def trusted(self, factor: float = TRUST) -> tuple[float, float]:
        """Return the range of sizes that the measurements speak for."""
        return self.sizes[0] / factor, self.sizes[-1] * factor


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _merge(points: Sequence[Point]) -> tuple[Array, Array, Array]:
    """Merge sizes closer than `MERGE`: weighted mean of the size, weighted median of the time, sum of the weights."""
    ordered = sorted(points, key=lambda p: p.micro_batch)
    groups: list[list[Point]] = []
    for point in ordered:
        if groups and math.log(point.micro_batch / groups[-1][0].micro_batch) <= MERGE:
            groups[-1].append(point)
        else:
            groups.append([point])
    log_x, log_t, weight = [], [], []
    for group in groups:
        w = np.array([1 / p.variance for p in group])
        log_x.append(float(np.log([p.micro_batch for p in group]) @ w / w.sum()))
        log_t.append(_weighted_median(np.log([p.seconds for p in group]), w))
        weight.append(float(w.sum()))
    return np.array(log_x), np.array(log_t), np.array(weight)


def _weighted_median(values: Array, weights: Array) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    at = int(np.searchsorted(reached, 0.5))
    if math.isclose(reached[at], 0.5) and at + 1 < values.size:
        return float(values[order[at : at + 2]].mean())
    return float(values[order[at]])


def _tail(u: Array, v: Array, weight: Array, steepest: float) -> float:
    """Return the elasticity at an end, from sizes and times relative to it; ridge regression towards the prior.

    In these units a straight line a + c x is a straight line, so that its continuation is exact.
    """
    near = (u <= _REACH) & (u >= 1 / _REACH)
    u, v, w = u[near], v[near], weight[near] / v[near] ** 2
    centred = u - (w @ u) / w.sum()
    precision = float(w @ centred**2)
    pull = 1 / PRIOR_SPREAD**2
    slope = (float((w * centred) @ v) + pull * PRIOR_ELASTICITY) / (precision + pull)
    return min(max(slope, 0.02), steepest)
