"""How long does a device take for a micro-batch of x samples?

Measured curves are short (two to eight sizes), noisy, now and then decreasing (other kernels), and asked for at sizes
that were never run. A cubic through such points oscillates and extrapolates to nonsense. Here a curve is what the field
data support (and no more): repeats merged, a weighed average of the laws that devices follow (`curve_fit`), made
monotone, and continued outside by straight lines as far as the laws lead within the trusted range. Where the time jumps
from one size to the next by more than a device's work can grow, another kernel has set in: such a cliff is told, and
nothing is smoothed across it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import optimize

from rex_operator.planning.curve_fit import Shape, average

Array = npt.NDArray[np.float64]

TRUST = 2.0
"""A size is trusted up to this factor outside the measured range."""
MERGE = 0.03
"""Sizes within 3 % are one size: their difference is noise, and a slope through them would be too."""
CLIFF = 0.15
"""A jump is told when the time grows by 15 % more than the size does ..."""
_CLIFF_ERRORS = 3.0
"""... and by so many standard errors of the two measurements."""
_LEAST_ELASTICITY = 0.02
_STEEPEST = 1.5
_TABLE = 65
_UNKNOWN = 0.3
"""Standard deviation of the log per doubling, where a curve was only given and never fitted."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement: ``micro_batch`` samples took ``seconds``; ``variance`` is that of the logarithm of seconds."""

    micro_batch: float
    seconds: float
    variance: float = 1e-4


@dataclass(frozen=True, slots=True)
class Cliff:
    """Somewhere above ``low`` and up to ``high`` samples the time jumps by a factor ``jump`` beyond proportion."""

    low: float
    high: float
    jump: float


@dataclass(frozen=True)
class StepTimeCurve:
    """Seconds per micro-batch, monotone and positive everywhere.

    ``sizes`` are the measured sizes, repeats merged, and ``seconds`` the curve's times at them; ``below`` and ``above``
    the elasticities (percent of time per percent of size) with which straight lines leave the first and the last.
    """

    sizes: tuple[float, ...]
    seconds: tuple[float, ...]
    below: float
    above: float
    between: tuple[tuple[float, float], ...] = ()
    """The curve from the first to the last size: (log size, log seconds), strictly ascending; empty: through the
    sizes."""
    doubts: tuple[tuple[float, float], ...] = ()
    """(log size, standard deviation of the log seconds) over the trusted range; empty: not known."""
    cliffs: tuple[Cliff, ...] = ()

    @classmethod
    def fit(cls, points: Sequence[Point], like: Sequence[StepTimeCurve] = ()) -> StepTimeCurve:
        """Fit a curve. What is not finite and positive is dropped; raises ``ValueError`` if nothing is left.

        ``like``: curves of other devices under the same model, whose shape this one may share.
        """
        good = [p for p in points if _positive(p.micro_batch) and _positive(p.seconds) and _positive(p.variance)]
        if not good:
            raise ValueError("a curve needs at least one finite point")
        log_x, log_t, weight = _merge(good)
        cliffs = _cliffs(log_x, log_t, weight)
        dense = np.unique(np.concatenate([np.linspace(log_x[0], log_x[-1], _TABLE), log_x]))
        far = math.log(TRUST)
        grid = np.concatenate([[log_x[0] - far], dense, [log_x[-1] + far]])
        jumps = [(math.log(c.low), math.log(c.high), math.log(c.jump)) for c in cliffs]
        found = average(log_x, log_t, 1 / weight, grid, jumps, [_shape(c) for c in like])
        level = np.asarray(optimize.isotonic_regression(found.mean).x)
        inside = level[1:-1] + 1e-9 * np.arange(dense.size)
        below = _clamped((1 - math.exp(level[0] - level[1])) / (1 - 1 / TRUST), 1.0)
        above = _clamped((math.exp(level[-1] - level[-2]) - 1) / (TRUST - 1), _STEEPEST)
        return cls(
            tuple(np.exp(log_x).tolist()),
            tuple(np.exp(np.interp(log_x, dense, inside)).tolist()),
            below,
            above,
            tuple(zip(dense.tolist(), inside.tolist(), strict=True)),
            tuple(zip(grid.tolist(), found.deviation.tolist(), strict=True)),
            cliffs,
        )

    @cached_property
    def table(self) -> tuple[Array, Array]:
        """The curve for linear look-up both ways, in logarithms; strictly increasing in both."""
        if self.between:
            log_x, log_t = np.array(self.between).T
            return log_x, log_t
        log_t = np.maximum.accumulate(np.log(self.seconds)) + 1e-9 * np.arange(len(self.seconds))
        return np.log(self.sizes), log_t

    def time(self, micro_batch: npt.ArrayLike) -> Array:
        """Return the seconds for each size (positive, need not be whole)."""
        x = np.asarray(micro_batch, dtype=np.float64)
        log_x, log_t = self.table
        inside = np.exp(np.interp(np.log(np.maximum(x, 1e-9)), log_x, log_t))
        low = math.exp(log_t[0]) * (1 + self.below * (x / self.sizes[0] - 1))
        high = math.exp(log_t[-1]) * (1 + self.above * (x / self.sizes[-1] - 1))
        return np.where(x < self.sizes[0], low, np.where(x > self.sizes[-1], high, inside))

    def largest(self, seconds: npt.ArrayLike) -> Array:
        """Return the largest size that is done within each of ``seconds``; 0 where not even the smallest is."""
        t = np.asarray(seconds, dtype=np.float64)
        log_x, log_t = self.table
        first, last = math.exp(log_t[0]), math.exp(log_t[-1])
        inside = np.exp(np.interp(np.log(np.maximum(t, 1e-300)), log_t, log_x))
        low = self.sizes[0] * np.maximum(0.0, 1 + (t / first - 1) / self.below)
        high = self.sizes[-1] * (1 + (t / last - 1) / self.above)
        return np.where(t < first, low, np.where(t > last, high, inside))

    def deviation(self, micro_batch: npt.ArrayLike) -> Array:
        """Return how sure the curve is at each size: the standard deviation of the log of its seconds.

        Beyond the trusted range it grows on as it did towards its end.
        """
        at = np.log(np.maximum(np.asarray(micro_batch, dtype=np.float64), 1e-9))
        ends = np.log([self.sizes[0], self.sizes[-1]])
        beyond = np.maximum(0.0, np.maximum(ends[0] - at, at - ends[1]))
        if not self.doubts:
            return np.asarray(_UNKNOWN * beyond / math.log(2))
        log_x, doubt = np.array(self.doubts).T
        outside = np.where(at < log_x[0], log_x[0] - at, np.maximum(0.0, at - log_x[-1]))
        growth = np.maximum(0.0, np.where(at < log_x[0], doubt[0] - doubt[1], doubt[-1] - doubt[-2])) / math.log(TRUST)
        return np.asarray(np.interp(at, log_x, doubt) + growth * outside)

    def trusted(self, factor: float = TRUST) -> tuple[float, float]:
        """Return the range of sizes that the measurements speak for."""
        return self.sizes[0] / factor, self.sizes[-1] * factor


def _shape(curve: StepTimeCurve) -> Shape:
    return lambda log_x: np.log(curve.time(np.exp(log_x)))


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _clamped(elasticity: float, steepest: float) -> float:
    return min(max(elasticity, _LEAST_ELASTICITY), steepest)


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


def _cliffs(log_x: Array, log_t: Array, weight: Array) -> tuple[Cliff, ...]:
    """Return the jumps. A lone slow or fast point is none: its neighbours on both sides must agree."""
    before = np.maximum(log_t[:-1], np.concatenate([log_t[:1], log_t[:-2]]))
    after = np.minimum(log_t[1:], np.concatenate([log_t[2:], log_t[-1:]]))
    error = np.sqrt(1 / weight[1:] + 1 / weight[:-1])
    excess = after - before - np.diff(log_x)
    return tuple(
        Cliff(math.exp(log_x[i]), math.exp(log_x[i + 1]), math.exp(excess[i]))
        for i in np.flatnonzero(excess > np.maximum(CLIFF, _CLIFF_ERRORS * error))
    )
