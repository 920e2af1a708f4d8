"""What does a step cost beside the slowest worker's computing, for another batch, other passes, another team?

One number (the median of step minus slowest computing) is right for the plan that runs. But gradients are exchanged
while the backward pass still computes: a longer last pass hides more of it, and of several passes only the last one
does. So the cost falls with the micro-batch and rises with the team. Two published forms tell how: Pollux (OSDI'21)
joins computing c and exchange n as (c^g + n^g)^(1/g), n = alpha + beta max(K - 2, 0) for K workers; Cannikin
(Middleware'24) knows two regimes, computing that outlasts the exchange and hides all of it, and an exchange that
outlasts the part h c of the pass that is left once the first gradients are ready: n - h c is seen. Here all of them are
fitted to what was measured, each measurement by its inverse variance, and one that hides something is believed only
when the data speak for it; otherwise the cost stays what it is: the same for every batch.

With h and n shared by all workers, each one's end is a rising function of its own computing alone. So equal computing
times remain the best split in both regimes, and `split` needs none of this; what a batch is worth does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import optimize

from rex_operator.planning.curves import Array
from rex_operator.planning.types import Record

MAX_KEPT = 64
_POWERS = (1.5, 2.0, 3.0, 5.0, 10.0)
"""Pollux's g; 1 hides nothing, and 10 hides almost all of the shorter one."""
_BEHIND = (1 / 6, 1 / 3, 1 / 2, 2 / 3)
"""h: the backward pass is about two thirds of computing, and the first gradients are ready early or late in it."""
_APART = 1.5
"""Passes whose lengths differ by less than this factor do not tell what is hidden."""
_CONVINCING = 3.0
"""Log likelihood by which a form that hides something must be ahead of the plain one."""
_RELATIVE = 0.05
"""Standard deviation of a measured cost that no law explains ..."""
_TIMER_S = 2e-4
"""... and its floor: clocks are coarse."""
_HALVINGS = 60
_ROUNDS = 12


@dataclass(frozen=True, slots=True)
class Communication:
    """The cost of a step of one team; plain data.

    ``power`` (Pollux's g) and ``behind`` (Cannikin's h) say how the exchange hides; with 1 and 0 it does not.
    """

    other_s: float = 0.0
    """Seconds per step that nothing hides: optimiser, data, the last bucket."""
    exchange_s: float = 0.0
    """Seconds of the exchange, if nothing hid it."""
    power: float = 1.0
    behind: float = 0.0

    def overhead(self, compute_s: npt.ArrayLike, accumulation: int) -> Array:
        """Return the seconds beside computing, when the slowest worker computes ``compute_s`` in so many passes."""
        last = np.maximum(np.asarray(compute_s, dtype=np.float64), 1e-12) / accumulation
        return self.other_s + _seen(last, np.asarray(self.exchange_s), self.power, self.behind)

    def step_seconds(self, compute_s: npt.ArrayLike, accumulation: int) -> Array:
        """Return the seconds of a step whose slowest worker computes ``compute_s`` in so many passes."""
        return np.asarray(compute_s, dtype=np.float64) + self.overhead(compute_s, accumulation)

    def compute_seconds(self, step_s: npt.ArrayLike, accumulation: int) -> Array:
        """Return the slowest worker's computing in a step of ``step_s``: the inverse of `step_seconds`; 0 at least."""
        step = np.asarray(step_s, dtype=np.float64)
        if self.power == 1 and self.behind == 0:
            return np.maximum(0.0, step - self.other_s - self.exchange_s)
        low, high = np.zeros_like(step), np.maximum(step, 0.0)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            over = self.step_seconds(middle, accumulation) > step
            low, high = np.where(over, low, middle), np.where(over, middle, high)
        return low


def plain(overhead_s: float) -> Communication:
    """Return a cost that is the same for every plan."""
    return Communication(other_s=overhead_s)


def _seen(last: Array, exchange: Array, power: float, behind: float) -> Array:
    """Return the seconds of the exchange that a last pass of ``last`` seconds does not hide."""
    if behind:
        return np.maximum(0.0, exchange - behind * last)
    if power == 1:
        return exchange + np.zeros_like(last)
    large = np.maximum(last, exchange)
    return np.asarray(large * ((last / large) ** power + (exchange / large) ** power) ** (1 / power) - last)


class KeptExchange(Record):
    """What steps of one plan cost beside computing, in seconds."""

    workers: int
    global_batch: int
    accumulation: int
    compute_s: float
    """Of the slowest worker, all passes."""
    overhead_s: float
    comm_s: float | None = None
    """The part of it that the workers tell as communication; None where they do not."""
    variance: float = 0.0
    """Of ``overhead_s``, in square seconds."""


@dataclass(frozen=True, slots=True)
class Law:
    """How the cost depends on the team: ``alpha_s`` + ``beta_s`` max(K - 2, 0) seconds of exchange for K > 1."""

    other_s: float = 0.0
    alpha_s: float = 0.0
    beta_s: float = 0.0
    power: float = 1.0
    behind: float = 0.0

    def at(self, workers: int) -> Communication:
        """Return the cost for a team."""
        exchange = self.alpha_s + self.beta_s * max(workers - 2, 0) if workers > 1 else 0.0
        return Communication(self.other_s, exchange, self.power, self.behind)

    def through(self, one: KeptExchange) -> Law:
        """Return the same law moved so that it meets what was measured just now: all that it is to tell is changes."""
        exposed = float(self.at(one.workers).overhead(one.compute_s, one.accumulation)) - self.other_s
        if one.overhead_s >= exposed:
            return replace(self, other_s=one.overhead_s - exposed)
        part = one.overhead_s / exposed
        return replace(self, other_s=0.0, alpha_s=part * self.alpha_s, beta_s=part * self.beta_s)


class Exchanges:
    """The costs of the plans that ran, one per plan and size of team, the newest; bounded."""

    def __init__(self, saved: Sequence[KeptExchange] = ()) -> None:
        self._kept = {_key(one): one for one in saved}
        self._law: Law | None = None

    def put(self, one: KeptExchange) -> None:
        """Take in what a plan's steps cost; nothing where that is not finite."""
        if not (math.isfinite(one.overhead_s) and math.isfinite(one.variance) and one.compute_s > 0):
            return
        if one is next(reversed(self._kept.values()), None):
            return  # it was the newest before
        self._kept.pop(_key(one), None)
        self._kept[_key(one)] = one
        if len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        self._law = None

    def law(self) -> Law:
        """Return the law that what ran speaks for."""
        if self._law is None:
            self._law = fit(tuple(self._kept.values()))
        return self._law

    def state(self) -> tuple[KeptExchange, ...]:
        """Return what is to be kept."""
        return tuple(self._kept.values())


def _key(one: KeptExchange) -> tuple[int, int, int]:
    return one.workers, one.global_batch, one.accumulation


def fit(seen: Sequence[KeptExchange]) -> Law:
    """Fit all forms by weighted least squares; the plain one unless another is clearly likelier."""
    if not seen:
        return Law()
    data = _Data(seen)
    best, least = data.fitted(1.0, 0.0)
    if not data.tells_hiding:
        return best
    least -= _CONVINCING
    for power, behind in [(g, 0.0) for g in _POWERS] + [(1.0, h) for h in _BEHIND]:
        law, misfit = data.fitted(power, behind)
        if misfit < least:
            best, least = law, misfit
    return best


class _Data:
    """Measurements as arrays, and what they can tell."""

    def __init__(self, seen: Sequence[KeptExchange]) -> None:
        workers = np.array([s.workers for s in seen])
        self._last = np.array([s.compute_s / s.accumulation for s in seen])
        self._cost = np.array([s.overhead_s for s in seen])
        noise = np.array([s.variance for s in seen]) + _TIMER_S**2
        self._error = np.sqrt(noise + (_RELATIVE * self._cost) ** 2)
        told = np.array([math.nan if s.comm_s is None else s.comm_s for s in seen])
        known = np.isfinite(told)
        beside, trust = (self._cost - told)[known], 1 / self._error[known] ** 2
        self._other = max(0.0, float(beside @ trust / trust.sum())) if known.any() else None
        group, more = workers > 1, np.maximum(workers - 2, 0)
        self._alone = bool((~group).any())
        self._grows = np.unique(more[group]).size > 1
        self._exchange = np.stack([group * 1.0, group * more * 1.0 * self._grows])
        lasts = [self._last[workers == k] for k in np.unique(workers[group])]
        self.tells_hiding = any(one.max() >= _APART * one.min() for one in lasts)

    def fitted(self, power: float, behind: float) -> tuple[Law, float]:
        """Return the best law of a form, and half the sum of its squared standardised errors.

        From two ends: nothing of the exchange is hidden, or all that the shortest pass can hide.
        """
        shortest = int(np.argmin(self._last))
        most = float(self._cost[shortest] + self._last[shortest])
        starts = (float(self._cost.max()),) if power == 1 and behind == 0 else (float(self._cost.max()), most)
        return min((self._descended(power, behind, start) for start in starts), key=lambda found: found[1])

    def _descended(self, power: float, behind: float, alpha_s: float) -> tuple[Law, float]:
        """Gauss and Newton with bounds: the form is linear but in the exchange, in whose seen part it is smooth."""
        frees_other = self._other is None and (power != 1 or behind != 0 or self._alone)
        fixed = self._other or 0.0
        values = np.array([alpha_s, 0.0, 0.0])
        best, least = values, math.inf
        for _ in range(_ROUNDS):
            exchange = np.maximum(values[:2] @ self._exchange, 1e-12)
            seen = _seen(self._last, exchange, power, behind)
            misfit = float((((seen + fixed + values[2] - self._cost) / self._error) ** 2).sum()) / 2
            if misfit >= least * (1 - 1e-6):
                break
            best, least = values, misfit
            slope = _slope(self._last, exchange, power, behind)
            design = np.stack([*(self._exchange * slope), np.full(seen.size, float(frees_other))])
            wanted = self._cost - fixed - seen + slope * (values[:2] @ self._exchange)
            values, _ = optimize.nnls((design / self._error).T, wanted / self._error)
        return Law(fixed + float(best[2]), float(best[0]), float(best[1]), power, behind), least


def _slope(last: Array, exchange: Array, power: float, behind: float) -> Array:
    """Return how much more of the exchange is seen per second of it; never quite nothing, lest it be lost sight of."""
    if behind:
        return np.where(exchange > behind * last, 1.0, 1e-3)
    if power == 1:
        return np.ones_like(last)
    return np.asarray(np.maximum(1e-3, (1 + (last / exchange) ** power) ** (1 / power - 1)))
