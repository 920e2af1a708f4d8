"""Which law do a few step times follow? Several are weighed by how well each explains the points, and averaged.

A line is sober outside the data but misses what kernels do between; an interpolant follows every noisy point and runs
away outside; a device that is not full yet shows no slope at all. With four or five points none of them is right every
time, and choosing one by its fit is choosing by luck. So the curve is a Bayesian average: of laws with a floor and a
proportional part (a line, and bends sharper than a line's, at every place), of the shapes of the job's other devices
where they are known, each with a smooth deviation (a Gaussian process over the logarithm of the size) of several sizes
and ranges, and of several sizes of unexplained roughness. The weights are the marginal likelihoods; nothing is
optimised, so that the same points always give the same curve. Many points override the laws, few lean on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

Array = npt.NDArray[np.float64]
Shape = Callable[[Array], Array]
"""Log seconds over log size, up to a constant."""

_POWERS = (1.0, 2.0, 4.0)
"""Seconds follow (floor^p + (slope x size)^p)^(1/p): 1 is a line, more a sharper bend."""
_BEYOND = 3.0
"""A bend may lie this far outside the sizes, in the logarithm."""
_BENDS_APART = 0.7
_PROPORTIONAL = 20.0
"""Weight of "proportional throughout", where one bend's is 1 ..."""
_FLAT = 20.0
"""... and of "flat throughout", once the sizes span a factor of `_SPAN`: a device that is far from full. With less to
go by it weighs less: one point must not promise that larger batches are free."""
_SPAN = np.log(8.0)
_AMPLITUDES = ((0.03, 1.0), (0.1, 1.0), (0.3, 0.3))
"""Considered sizes (standard deviation of the log) of the smooth deviation from the law, with their weights ..."""
_LENGTHS = (1.5, 3.0, 6.0)
"""... over which distance in the log size it stays alike ..."""
_ROUGHNESS = ((0.003, 1.0), (0.01, 1.0), (0.03, 0.5), (0.1, 0.1), (0.2, 0.03))
"""... and of what is neither law nor smooth, beside the points' own noise."""
_LEVEL = 10.0**2
"""Prior variance of the level: next to nothing is known of it."""
_LIKE = 3.0
"""Weight of the other devices' shapes together, where the laws' together is 1 ..."""
_SHIFTS = (-1.4, -0.7, 0.0, 0.7, 1.4)
"""... each also for a device so many times larger (in the log): more cores are full at a larger size."""
_NEGLIGIBLE = 1e-3


@dataclass(frozen=True, slots=True)
class Average:
    """Log seconds at each place of a grid, and their standard deviation (of the curve, without a measurement's)."""

    mean: Array
    deviation: Array


@dataclass(frozen=True, slots=True)
class _Setting:
    """One size and range of the smooth deviation, and one size of the roughness."""

    amplitude: float
    length: float
    roughness: float
    log_weight: float


_SETTINGS = tuple(
    _Setting(amplitude, length, rough, float(np.log(likely * usual)))
    for amplitude, likely in _AMPLITUDES
    for length in _LENGTHS
    for rough, usual in _ROUGHNESS
)


def average(
    log_x: Array, log_t: Array, variance: Array, grid: Array, jumps: Sequence[tuple[float, float, float]] = (),
    like: Sequence[Shape] = (),
) -> Average:  # fmt: skip
    """Average the laws over the points.

    Args:
        log_x: (n,) ascending log sizes.
        log_t: (n,) log seconds.
        variance: (n,) noise variances of ``log_t``.
        grid: (m,) log sizes that are asked for.
        jumps: places (from, to in the log size) where another kernel sets in, with the jump's size in the log; what
            lies left and right of one is independent to that extent. Between the two the place is unknown.
        like: shapes that this curve may resemble.
    """
    at_points, at_grid, log_prior = _laws(log_x, grid, like)
    missed = log_t[:, None] - at_points
    precision, log_root, to_grid = _processes(log_x, variance, grid, jumps)
    pull = precision @ missed  # (settings, n, laws)
    evidence = -0.5 * np.einsum("nl,snl->sl", missed, pull) - log_root[:, None] + log_prior
    evidence += np.array([s.log_weight for s in _SETTINGS])[:, None]
    weight = np.exp(evidence - special.logsumexp(evidence))
    kept = np.flatnonzero(weight.sum(axis=1) > _NEGLIGIBLE)
    share = weight[kept] / weight[kept].sum()
    each = at_grid + to_grid[kept] @ pull[kept]  # (kept, m, laws)
    mean = np.einsum("sml,sl->m", each, share)
    between = np.einsum("sml,sl->m", (each - mean[:, None]) ** 2, share)
    amplitude = np.array([_SETTINGS[s].amplitude for s in kept])
    own = amplitude[:, None] ** 2 + _LEVEL + (_passed(grid, jumps) ** 2).sum(axis=0)
    within = own - np.einsum("smn,snk,smk->sm", to_grid[kept], precision[kept], to_grid[kept], optimize=True)
    total = between + np.maximum(0.0, within).T @ share.sum(axis=1)
    for low, high, size in jumps:  # whether it lies behind already is not known
        passed = np.clip((grid - low) / (high - low), 0, 1)
        total += size**2 * passed * (1 - passed)
    return Average(mean, np.sqrt(total))


def _laws(log_x: Array, grid: Array, like: Sequence[Shape]) -> tuple[Array, Array, Array]:
    """Return the laws' log seconds at the points (n, laws) and on the grid (m, laws), and their log prior weights."""
    bends = np.arange(log_x[0] - _BEYOND, log_x[-1] + _BEYOND + _BENDS_APART / 2, _BENDS_APART)
    weight = np.ones(bends.size)
    weight[0] = _PROPORTIONAL
    weight[-1] = 1 + (_FLAT - 1) * min(1.0, float(log_x[-1] - log_x[0]) / _SPAN)
    prior = np.tile(weight / weight.sum() / len(_POWERS), len(_POWERS))

    def law(at: Array) -> Array:
        return np.concatenate([np.logaddexp(0, p * (at[:, None] - bends)) / p for p in _POWERS], axis=1)

    at_points, at_grid = law(log_x), law(grid)
    if like:
        borrowed = [(shape, shift) for shape in like for shift in _SHIFTS]
        at_points = np.column_stack([at_points, *(shape(log_x - shift) for shape, shift in borrowed)])
        at_grid = np.column_stack([at_grid, *(shape(grid - shift) for shape, shift in borrowed)])
        prior = np.concatenate([prior, np.full(len(borrowed), _LIKE / len(borrowed))])
    return at_points, at_grid, np.log(prior)


def _processes(
    log_x: Array, variance: Array, grid: Array, jumps: Sequence[tuple[float, float, float]]
) -> tuple[Array, Array, Array]:
    """Return each setting's precision matrix of the points, half its log determinant, and covariance to the grid."""
    apart, off = np.abs(log_x[:, None] - log_x), np.abs(grid[:, None] - log_x)
    steps = _passed(log_x, jumps)
    common, common_off = _LEVEL + steps.T @ steps, _LEVEL + _passed(grid, jumps).T @ steps
    smooth = np.array([s.amplitude**2 * _matern(apart / s.length) for s in _SETTINGS[:: len(_ROUGHNESS)]])
    smooth_off = np.array([s.amplitude**2 * _matern(off / s.length) for s in _SETTINGS[:: len(_ROUGHNESS)]])
    noise = np.array([np.diag(variance + s.roughness**2) for s in _SETTINGS])
    covariance = common + np.repeat(smooth, len(_ROUGHNESS), axis=0) + noise
    _, log_determinant = np.linalg.slogdet(covariance)
    return np.linalg.inv(covariance), log_determinant / 2, common_off + np.repeat(smooth_off, len(_ROUGHNESS), axis=0)


def _matern(distance: Array) -> Array:
    """Matern's covariance of smoothness 5/2."""
    r = np.sqrt(5.0) * distance
    return np.asarray((1 + r + r * r / 3) * np.exp(-r))


def _passed(places: Array, jumps: Sequence[tuple[float, float, float]]) -> Array:
    """Return how much of each jump lies below each place, (jumps, places)."""
    rows = [size * np.clip((places - low) / (high - low), 0, 1) for low, high, size in jumps]
    return np.array(rows).reshape(len(jumps), places.size)
