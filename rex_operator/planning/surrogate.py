"""How sure is a predicted step time, and what may be gained by trying? A Gaussian process over what the curves miss.

The curves predict the step time of any batch; the process models only the remaining error, in logarithms, from the
plans that really ran, each with its own measured noise. So a wrong curve is corrected by data, and a batch far from
all that ran is uncertain rather than promising. Built on scikit-optimize's regressor; its optimisers, random restarts
and acquisition functions are not used (see docs/adr/0011).

Importing this module takes seconds (scikit-learn); only a search does it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special
from skopt.learning import GaussianProcessRegressor
from skopt.learning.gaussian_process.kernels import ConstantKernel, Matern
from threadpoolctl import threadpool_limits

from rex_operator.planning.curves import Array

Chosen = npt.NDArray[np.bool_]

_one_core: Any = threadpool_limits
_Regressor: Any = GaussianProcessRegressor  # the library has no types
_Constant: Any = ConstantKernel
_Matern: Any = Matern

_OFFSET = 0.2**2
"""Prior variance of what is missed by the same factor everywhere; it cancels in every comparison."""
_AMPLITUDES = (0.02, 0.06, 0.18)
"""Considered sizes of the curves' error (standard deviation of the log): about 5 % is what field data show, and cliffs
of 20 % and more now and then."""
_LENGTHS = (0.35, 1.0, 3.0)
"""Considered distances, in doublings of the batch, over which that error stays alike."""
_DRAWS = 512
"""Draws behind the chance that any of many, which are alike, is better ..."""
_LIKELIEST = 32
"""... of these many: what the others add is nothing to speak of."""


@dataclass(frozen=True, slots=True)
class Belief:
    """What m candidates may gain over the running plan: a mixture of k joint normal distributions."""

    weights: Array
    """(k,) of the hyper-parameters' settings; they sum to 1."""
    means: Array
    """(k, m) of the gain of the log objective."""
    deviations: Array
    """(k, m)"""
    covariance: Array
    """(m, m) under the likeliest setting."""

    def expected(self) -> Array:
        """Return the expected gain, (m,)."""
        return self._mixed(self.means)

    def improvement(self, margin: float) -> Array:
        """Return E[max(0, gain - margin)], (m,) (Snoek et al. 2012)."""
        return self._mixed(_above(self.means - margin, self.deviations))

    def loss(self) -> Array:
        """Return E[max(0, -gain)], (m,): what is lost per unit of time while a candidate is on trial."""
        return self._mixed(_above(-self.means, self.deviations))

    def chance(self, margin: float) -> Array:
        """Return each candidate's chance to gain more than ``margin``, (m,)."""
        return self._mixed(special.ndtr((self.means - margin) / self.deviations))

    def chance_of_any(self, margin: float, allowed: Chosen) -> float:
        """Return the chance that at least one of the ``allowed`` candidates (m, bool) gains more than ``margin``.

        By fixed draws from the joint distribution under the likeliest setting: neighbours rise and fall together, so
        their chances neither add up nor multiply.
        """
        if not allowed.any():
            return 0.0
        ranked = np.argsort(np.where(allowed, -self.chance(margin), 1.0))[: min(_LIKELIEST, int(allowed.sum()))]
        mean = self.means[int(np.argmax(self.weights))][ranked]
        with _one_core(1):
            values, vectors = np.linalg.eigh(self.covariance[np.ix_(ranked, ranked)])
            draws = np.random.default_rng(0).standard_normal((_DRAWS, mean.size))
            gains = mean + draws @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
        return float((gains.max(axis=1) > margin).mean())

    def _mixed(self, per_setting: Array) -> Array:
        return np.asarray(self.weights @ per_setting)


def believe(
    tried: Array,
    residuals: Array,
    variances: Array,
    candidates: Array,
    current: Array,
    prior_gain: Array,
    spread: Array,
) -> Belief:
    """Return what each candidate may gain.

    Args:
        tried: (n, 2) places of the plans that ran.
        residuals: (n,) measured minus predicted log step time.
        variances: (n,) noise variances of the residuals.
        candidates: (m, 2) places of the plans in question.
        current: (2,) place of the plan that runs.
        prior_gain: (m,) gain of the log objective over the current plan that the curves predict.
        spread: (m,) additional standard deviation where the curves join or continue what was measured.
    """
    everything = np.vstack([current, candidates])
    evidence, means, deviations, covariances = [], [], [], []
    with _one_core(1):  # matrices this small lose more by waking other cores than they win
        for amplitude in _AMPLITUDES:
            for length in _LENGTHS:
                score, mean, joint = _posterior(tried, residuals, variances, everything, amplitude, length)
                gain = joint[0, 0] + joint[1:, 1:] - joint[:1, 1:] - joint[1:, :1] + np.outer(spread, spread)
                evidence.append(score)
                means.append(prior_gain - (mean[1:] - mean[0]))
                deviations.append(np.sqrt(np.maximum(np.diag(gain), 1e-12)))
                covariances.append(gain)
    weights = np.exp(np.array(evidence) - max(evidence))
    likeliest = covariances[int(np.argmax(weights))]
    return Belief(weights / weights.sum(), np.array(means), np.array(deviations), likeliest)


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


def _above(mean: Array, deviation: Array) -> Array:
    """Return E[max(0, x)] of normal x."""
    z = mean / deviation
    return np.asarray(mean * special.ndtr(z) + deviation * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi))
