"""How long does a step take on so many replicas? The model of Pollux and AdaptDL (Qiao et al., OSDI'21).

Seven numbers describe a job on one kind of device:

    T_accum(m)  = alpha_c + beta_c m                                    a pass over m samples on each replica
    T_net(N, K) = alpha_n + beta_n max(K - 2, eps)                      over N > 1 nodes with K replicas
                  alpha_r + beta_r max(K - 2, eps)                      within a node; (almost) 0 for one replica
    T_optim     = (T_accum^gamma + T_net^gamma)^(1/gamma)               the pass that ends in an exchange of gradients
    T_iter      = s T_accum + T_optim                                   with s passes before it

gamma says how far computing and exchanging overlap: 1 not at all, 10 almost fully. All replicas have the same m: the
model knows no unlike devices. What was never measured is assumed to cost nothing, so that it gets tried.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import optimize
from threadpoolctl import threadpool_limits

Array = npt.NDArray[np.float64]

_one_core: Any = threadpool_limits
"""Seven numbers are not worth threads: waking them takes longer than the fit."""
_EPS = 1e-8
_LOWEST = 1e-8
_MOST_OVERLAP = 10.0
_START = (0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001)
_GAMMA_WEIGHT = 1e-3
_RETROGRESSION_WEIGHT = 1e-2
_DEARER = 1.1
"""Nodes that were never tried are at least so much dearer than what was seen within one."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Where steps were measured, and how long they took on average."""

    nodes: int
    replicas: int
    micro_batch: float
    accum_s: float
    """Seconds of a pass without the exchange."""
    optim_s: float
    """Seconds of the pass that ends in the exchange."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """The fitted numbers, in seconds (``beta``: per sample or per replica)."""

    alpha_c: float
    beta_c: float
    alpha_n: float
    beta_n: float
    alpha_r: float
    beta_r: float
    gamma: float

    def iteration_s(self, nodes: int, replicas: int, micro_batch: Array, passes: Array) -> Array:
        """Return the seconds of optimiser steps of ``passes`` passes over ``micro_batch`` samples per replica."""
        theta = np.array([*self.numbers()])
        accum = self.alpha_c + self.beta_c * micro_batch
        shape = np.broadcast(micro_batch, passes).shape
        design = _Design(np.full(shape, nodes), np.full(shape, replicas), np.broadcast_to(micro_batch, shape))
        optim = np.exp(_log_optim(accum, design.network(theta), self.gamma))
        return np.asarray((passes - 1) * accum + optim)

    def numbers(self) -> tuple[float, ...]:
        """Return all seven, in the order of the fields."""
        return (self.alpha_c, self.beta_c, self.alpha_n, self.beta_n, self.alpha_r, self.beta_r, self.gamma)


def fit(seen: Sequence[Configuration]) -> Throughput:
    """Fit the model: relative errors of both times, least squares of their logarithms, L-BFGS-B within bounds.

    Fixed start, so that the same data give the same numbers. Raises ``ValueError`` without any configuration, or if a
    time or size is not finite and positive.
    """
    if not seen:
        raise ValueError("the throughput model needs at least one measured configuration")
    table = np.array([[c.nodes, c.replicas, c.micro_batch, c.accum_s, c.optim_s] for c in seen], dtype=np.float64)
    if not (np.isfinite(table).all() and (table > 0).all()):
        raise ValueError("the throughput model takes finite positive sizes and times only")
    nodes, replicas, sizes, accum, optim = table.T
    start, low, high = _priors(nodes, replicas, sizes, accum)
    design = _Design(nodes, replicas, sizes)
    with _one_core(limits=1):
        found = optimize.minimize(
            _loss,
            start,
            args=(design, np.log(accum), np.log(optim)),
            jac=True,
            method="L-BFGS-B",
            bounds=list(zip(low, high, strict=True)),
        )
    theta = found.x
    if not (nodes > 1).any():
        theta[2] = max(theta[2], _DEARER * theta[4])
        theta[3] = max(theta[3], _DEARER * theta[5])
    return Throughput(*(float(value) for value in theta))


def _priors(nodes: Array, replicas: Array, sizes: Array, accum: Array) -> tuple[Array, Array, Array]:
    """Return start and bounds; what the data cannot tell is pinned, optimistically."""
    start = np.array(_START)
    low = np.array([_LOWEST] * 6 + [1.0])
    high = np.array([math.inf] * 6 + [_MOST_OVERLAP])
    within, across = (nodes == 1) & (replicas > 1), nodes > 1
    if np.unique(sizes).size == 1:
        start[0] = low[0] = high[0] = accum.mean() / 2
    pinned: set[int] = set()
    if not across.any():
        pinned |= {2, 3}
    if not within.any():
        pinned |= {4, 5}
    if not (replicas > 2).any():
        pinned |= {3, 5}
    for place in pinned:
        start[place] = high[place] = low[place]
    return start, low, high


class _Design:
    """The rows of a fit, by what each kind of exchange contributes to them."""

    def __init__(self, nodes: npt.NDArray[np.generic], replicas: npt.NDArray[np.generic], sizes: Array) -> None:
        more = np.maximum(np.asarray(replicas, dtype=np.float64) - 2, _EPS)
        across = np.asarray(nodes) > 1
        within = ~across & (np.asarray(replicas) > 1)
        self.sizes = sizes
        self.rows = (across * 1.0, across * more, within * 1.0, within * more)
        self.alone = ~across & ~within

    def network(self, theta: Array) -> Array:
        total = sum(theta[2 + i] * row for i, row in enumerate(self.rows))
        return np.asarray(np.where(self.alone, _EPS, total))


def _log_optim(accum: Array, network: Array, gamma: float) -> Array:
    high, low = np.maximum(accum, network), np.minimum(accum, network)
    return np.asarray(np.log(high) + np.log1p((low / high) ** gamma) / gamma)


def _loss(theta: Array, design: _Design, log_accum: Array, log_optim: Array) -> tuple[float, Array]:
    """Return the objective and its gradient."""
    gamma = float(theta[6])
    accum = theta[0] + theta[1] * design.sizes
    network = design.network(theta)
    predicted = _log_optim(accum, network, gamma)
    miss_accum, miss_optim = np.log(accum) - log_accum, predicted - log_optim
    error_accum, pull_accum = _rmse(miss_accum)
    error_optim, pull_optim = _rmse(miss_optim)
    # d log T_optim / d log T_accum, and the same for the network: shares of the power sum
    ratio = np.exp(np.clip(gamma * (np.log(network) - np.log(accum)), -700, 700))
    of_accum = 1 / (1 + ratio)
    of_network = 1 - of_accum
    by_accum = pull_accum / accum + pull_optim * of_accum / accum
    by_network = pull_optim * of_network / network
    by_gamma = pull_optim * (of_accum * np.log(accum) + of_network * np.log(network) - predicted) / gamma
    gradient = np.array(
        [by_accum.sum(), by_accum @ design.sizes, *(by_network @ row for row in design.rows), by_gamma.sum()]
    )
    value = error_accum + error_optim + _GAMMA_WEIGHT * (gamma - 1) ** 2
    gradient[6] += 2 * _GAMMA_WEIGHT * (gamma - 1)
    for alpha, beta in ((2, 3), (4, 5)):
        slope = theta[beta] / theta[alpha]
        value += _RETROGRESSION_WEIGHT * slope**2
        gradient[alpha] -= 2 * _RETROGRESSION_WEIGHT * slope**2 / theta[alpha]
        gradient[beta] += 2 * _RETROGRESSION_WEIGHT * slope / theta[alpha]
    return float(value), gradient


def _rmse(miss: Array) -> tuple[float, Array]:
    """Return the root of the mean square and its gradient."""
    error = math.sqrt(float(miss @ miss) / miss.size)
    return error, miss / (miss.size * error) if error > 0 else np.zeros_like(miss)
