"""The ways to model step time by batch size that REX's curves are compared with: each takes points and gives a curve.

Every model gets the same points, measured once, without being told how noisy they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import interpolate
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from rex_operator.planning.curves import Point, StepTimeCurve
from rex_operator.planning.policies.cubic import Cubic
from rex_operator.planning.pollux_throughput import Configuration, fit

Array = npt.NDArray[np.float64]
Curve = Callable[[Array], Array]
Model = Callable[[Array, Array], Curve]
"""From sizes (n,) ascending and seconds (n,) to seconds by size. Raises ValueError where the points are too few."""

_Regressor: Any = GaussianProcessRegressor  # the library has no types
_Constant: Any = ConstantKernel
_Matern: Any = Matern
_White: Any = WhiteKernel
_POSITIVE = 1e-9


def spline(sizes: Array, seconds: Array) -> Curve:
    """REX's."""
    return StepTimeCurve.fit([Point(x, t) for x, t in zip(sizes, seconds, strict=True)]).time


def linear(sizes: Array, seconds: Array) -> Curve:
    """A line a + c b, least squares of the relative error: what most planners assume."""
    a, c = np.linalg.lstsq(np.stack([1 / seconds, sizes / seconds], axis=1), np.ones(sizes.size), rcond=None)[0]
    return lambda x: np.asarray(np.maximum(a + c * x, _POSITIVE))


def cubic(sizes: Array, seconds: Array) -> Curve:
    """LBB's cubic polynomial, least squares of the seconds; outside its points along the tangent."""
    found = Cubic.fit(dict(zip(sizes.tolist(), seconds.tolist(), strict=True)))
    return lambda x: np.maximum([found.time(size) for size in x], _POSITIVE)


def natural_cubic(sizes: Array, seconds: Array) -> Curve:
    """A natural cubic spline of the logarithms, through every point."""
    found = interpolate.CubicSpline(np.log(sizes), np.log(seconds), bc_type="natural")
    return lambda x: np.asarray(np.exp(found(np.log(x))))


def pollux(sizes: Array, seconds: Array) -> Curve:
    """Pollux's and AdaptDL's model; of its seven parameters one GPU shows two, fitted in the logarithm of the time."""
    found = fit([Configuration(1, 1, x, t, t) for x, t in zip(sizes, seconds, strict=True)])
    return lambda x: found.iteration_s(1, 1, x, np.ones_like(x))


def gp(sizes: Array, seconds: Array) -> Curve:
    """A Gaussian process alone: Matern 5/2 in log-log, mean zero after standardising, maximum likelihood."""
    log_x, log_t = np.log(sizes), np.log(seconds)
    return _process(log_x, log_t, np.zeros_like(log_t), lambda x: np.zeros_like(x))


def linear_gp(sizes: Array, seconds: Array) -> Curve:
    """The same on what `linear` misses."""
    line = linear(sizes, seconds)
    return _process(np.log(sizes), np.log(seconds), np.log(line(sizes)), lambda x: np.log(line(x)))


def _process(log_x: Array, log_t: Array, mean: Array, prior: Curve) -> Curve:
    residual = log_t - mean
    shift, scale = float(residual.mean()), float(residual.std()) or 1.0
    kernel = _Constant(1.0, (1e-2, 1e2)) * _Matern(1.0, (0.1, 20.0), nu=2.5) + _White(1e-2, (1e-6, 1.0))
    model = _Regressor(kernel=kernel)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(log_x[:, None], (residual - shift) / scale)

    def curve(x: Array) -> Array:
        return np.asarray(np.exp(prior(x) + shift + scale * model.predict(np.log(x)[:, None])))

    return curve


def smoothing(sizes: Array, seconds: Array) -> Curve:
    """A cubic smoothing spline of the logarithms, its stiffness by generalised cross-validation; needs five points."""
    found = interpolate.make_smoothing_spline(np.log(sizes), np.log(seconds))
    return lambda x: np.asarray(np.exp(found(np.log(x))))


def pchip(sizes: Array, seconds: Array) -> Curve:
    """A monotone-preserving interpolant of the logarithms."""
    found = interpolate.PchipInterpolator(np.log(sizes), np.log(seconds))
    return lambda x: np.asarray(np.exp(found(np.log(x))))


MODELS: dict[str, Model] = {
    "spline": spline,
    "linear": linear,
    "cubic": cubic,
    "natural_cubic": natural_cubic,
    "pollux": pollux,
    "gp": gp,
    "linear_gp": linear_gp,
    "smoothing": smoothing,
    "pchip": pchip,
}
"""By the name in the figures."""
