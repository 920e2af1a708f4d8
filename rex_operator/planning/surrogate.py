"""How sure is a predicted step time, and what may be gained by trying? A Gaussian process over what the curves miss.

The curves predict the step time of any batch; the process models only the remaining error, in logarithms, from the
plans that really ran, each with its own measured noise. So a wrong curve is corrected by data, and a batch far from
all that ran is uncertain rather than promising. Built on scikit-optimize's regressor; its optimisers, random restarts
and acquisition functions are not used (see docs/adr/0011).

Importing this module takes seconds (scikit-learn); only a search does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats
from skopt.learning import GaussianProcessRegressor
from skopt.learning.gaussian_process.kernels import ConstantKernel, Matern
from threadpoolctl import threadpool_limits

from rex_operator.planning.curves import Array

_one_core: Any = threadpool_limits
_Regressor: Any = GaussianProcessRegressor  # the library has no types
_Constant: Any = ConstantKernel
_Matern: Any = Matern

_OFFSET = 0.2**2
"""Prior variance of what is missed by the same factor everywhere; it cancels in every comparison."""
_AMPLITUDES = (0.02, 0.04, 0.08)
"""Considered sizes of the curves' error (standard deviation of the log): about 5 % is what field data show."""
_LENGTHS = (0.7, 1.5, 3.0)
"""Considered distances, in doublings of the batch, over which that error stays alike."""


def gains(
    tried: Array,
    residuals: Array,
    variances: Array,
    candidates: Array,
    current: Array,
    prior_gain: Array,
    spread: Array,
) -> tuple[Array, Array, Array]:
    """Return what each candidate may gain, for every setting of the hyper-parameters, and the settings' weights.

    Args:
        tried: (n, 2) plans that ran, as (log2 batch, half of log2 accumulation).
        residuals: (n,) measured minus predicted log step time.
        variances: (n,) noise variances of the residuals.
        candidates: (m, 2) plans in question.
        current: (2,) the plan that runs.
        prior_gain: (m,) gain of the log objective over the current plan that the curves predict.
        spread: (m,) additional standard deviation where the curves extrapolate.

    Returns:
        ``(weights, mean, deviation)``: settings' posterior weights (k,), and for each setting and candidate the mean
        and the standard deviation of the gain, (k, m).
    """
    everything = np.vstack([current, candidates])
    evidence, means, deviations = [], [], []
    with _one_core(1):  # matrices this small lose more by waking other cores than they win
        for amplitude in _AMPLITUDES:
            for length in _LENGTHS:
                score, mean, covariance = _posterior(tried, residuals, variances, everything, amplitude, length)
                own, others = covariance[0, 0], np.diag(covariance)[1:]
                variance = np.maximum(0.0, own + others - 2 * covariance[0, 1:])
                evidence.append(score)
                means.append(prior_gain - (mean[1:] - mean[0]))
                deviations.append(np.sqrt(variance + spread**2))
    weights = np.exp(np.array(evidence) - max(evidence))
    return weights / weights.sum(), np.array(means), np.array(deviations)


def _posterior(
    tried: Array, residuals: Array, variances: Array, places: Array, amplitude: float, length: float
) -> tuple[float, Array, Array]:
    error = _Constant(amplitude**2, "fixed") * _Matern([length, length], nu=2.5, length_scale_bounds="fixed")
    kernel = _Constant(_OFFSET, "fixed") + error
    if not len(tried):
        return 0.0, np.zeros(len(places)), kernel(places)
    model = _Regressor(kernel=kernel, alpha=variances, optimizer=None, normalize_y=False)
    model.fit(tried, residuals)
    mean, covariance = model.predict(places, return_cov=True)
    return float(model.log_marginal_likelihood_value_), mean, covariance


def expected_improvement(mean: Array, deviation: Array, margin: float) -> Array:
    """Return E[max(0, gain - margin)] for normal gains (Snoek et al. 2012)."""
    safe = np.maximum(deviation, 1e-12)
    z = (mean - margin) / safe
    return np.asarray((mean - margin) * stats.norm.cdf(z) + safe * stats.norm.pdf(z))


def mixture(weights: Array, per_setting: Sequence[Array] | Array) -> Array:
    """Average over the hyper-parameter settings."""
    return np.asarray(weights @ np.asarray(per_setting))
