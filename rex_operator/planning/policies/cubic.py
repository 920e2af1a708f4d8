"""LBB's performance model: seconds of a micro-batch as a cubic in its size, and the shares that even it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from rex_operator.planning.curves import Array

MOST_SOLVED = 32
"""Workers up to which SLSQP is used; beyond, the same optimum (equal times) is found by bisection."""
_HALVINGS = 80


@dataclass(frozen=True, slots=True)
class Cubic:
    """t(b) = a3 b^3 + a2 b^2 + a1 b + a0 between the profiled sizes ``low`` and ``high``.

    Outside it goes on along the end's tangent (ours: a cubic beyond its points is no model at all).
    """

    coefficients: tuple[float, float, float, float]
    """a0, a1, a2, a3."""
    low: float
    high: float

    @property
    def intercept(self) -> float:
        """Return a0 where it is a time: not negative."""
        return max(0.0, self.coefficients[0])

    def time(self, size: float) -> float:
        """Return the seconds of a micro-batch."""
        a0, a1, a2, a3 = self.coefficients
        b = min(max(size, self.low), self.high)
        slope = a1 + 2 * a2 * b + 3 * a3 * b * b
        return a0 + a1 * b + a2 * b * b + a3 * b**3 + max(slope, 0.0) * (size - b)

    @classmethod
    def fit(cls, profile: Mapping[float, float]) -> Cubic:
        """Fit seconds by size: a cubic to four sizes or more, else a line, through the origin for a single one."""
        sizes, times = np.array(sorted(profile)), np.array([profile[b] for b in sorted(profile)])
        low, high = float(sizes[0]), float(sizes[-1])
        if sizes.size == 1:
            return cls((0.0, float(times[0]) / low, 0.0, 0.0), low, high)
        degree = 3 if sizes.size >= 4 else 1
        fitted = np.polyfit(sizes / high, times, degree)[::-1]
        a = [float(c) / high**k for k, c in enumerate(fitted)] + [0.0, 0.0]
        return cls((a[0], a[1], a[2], a[3]), low, high)

    def rebuilt(self, seconds: float, size: float) -> Cubic:
        """Return the rapid linear model: the intercept stays, the slope is what the present measurement says."""
        base = self.intercept if self.intercept < seconds else 0.0
        return Cubic((base, (seconds - base) / size, 0.0, 0.0), size, size)


def evened(models: Sequence[Cubic], start: Array, least: float, most: Array) -> Array:
    """Return real-valued sizes with the sum of ``start`` that minimise the largest less the smallest time.

    SLSQP on the sizes and two bounds that enclose all times, from ``start``; raises nothing: what does not converge is
    judged by its result, and the better of it and ``start`` is returned.
    """
    if len(models) > MOST_SOLVED:
        return _bisected(models, start, least, most)
    scale, n = float(np.mean([m.time(b) for m, b in zip(models, start, strict=True)])), len(models)
    mean = float(start.mean())

    def times(x: Array) -> Array:
        return np.array([m.time(b * mean) for m, b in zip(models, x[:n], strict=True)]) / scale

    first = times(start / mean)
    samples = np.concatenate([np.ones(n), [0.0, 0.0]])

    def enclosed(x: Array) -> Array:
        inside = times(x)
        return np.concatenate([x[n] - inside, inside - x[n + 1]])

    def difference(x: Array) -> float:
        return float(x[n] - x[n + 1])

    answer = optimize.minimize(
        difference,
        np.concatenate([start / mean, [first.max(), first.min()]]),
        method="SLSQP",
        bounds=optimize.Bounds(
            np.concatenate([np.full(n, least / mean), [0.0, 0.0]]), np.concatenate([most / mean, [np.inf, np.inf]])
        ),
        constraints=[
            optimize.LinearConstraint(samples, n, n),
            optimize.NonlinearConstraint(enclosed, 0.0, np.inf),
        ],
        options={"maxiter": 200},
    )
    found = np.asarray(answer.x[:n], dtype=np.float64)
    if not np.isfinite(found).all() or np.ptp(times(found)) > np.ptp(first):
        return start
    return found * mean


def _bisected(models: Sequence[Cubic], start: Array, least: float, most: Array) -> Array:
    """Return the sizes that all take the same time, as far as the bounds allow."""

    def within(seconds: float) -> Array:
        low, high = np.full(len(models), least), most.copy()
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            fits = np.array([m.time(b) for m, b in zip(models, middle, strict=True)]) <= seconds
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
        return low

    bottom, top = 0.0, max(m.time(b) for m, b in zip(models, start, strict=True))
    for _ in range(40):
        middle = (bottom + top) / 2
        if within(middle).sum() >= start.sum():
            top = middle
        else:
            bottom = middle
    return within(top)
