"""The shortest step of unlike nodes that exchange gradients while they still compute: OptPerf.

From Cannikin (Middleware'24). Node i needs a = q b + s for loading, forward pass and update and P = k b + m for the
backward pass over b samples. After the part gamma of it the first gradients are ready to be exchanged, which takes T_o
for all but the last of them and T_u for those, so that the node is done after

    a + P + T_u                   where computing takes longer (compute-bound),
    a + gamma P + T_o + T_u       where the exchange does (communication-bound),

whichever is later. Both are lines, so each node's time is convex and rising, and the number of samples that all finish
within T rises with T: bisecting T covers the paper's cases (all nodes compute-bound, all communication-bound, mixed) at
once, with ceilings too. In a step of several passes only the last one exchanges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rex_operator.planning.curves import Array, Point, StepTimeCurve
from rex_operator.planning.split import Team, WorkerModel, check_room

_HALVINGS = 50
_FLAT = 1e-15
_SLACK = 1e-9
_ANY = StepTimeCurve.fit([Point(1.0, 1.0)])
"""For a check of ceilings, which knows no speed."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node's lines: seconds and seconds per sample, not negative; ``cap`` is samples per pass, None: no bound."""

    worker_id: str
    q: float
    s: float
    k: float
    m: float
    cap: int | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """What all nodes share: the part of the backward pass before the first gradients, and seconds of the exchange."""

    gamma: float = 1.0
    t_o: float = 0.0
    t_u: float = 0.0


class OptPerf:
    """The best shares of steps of ``passes`` passes. Shares are samples per node and step."""

    def __init__(self, nodes: Sequence[Node], exchange: Exchange, passes: int = 1, min_share: int = 1) -> None:
        table = np.array([(n.q, n.s, n.k, n.m) for n in nodes], dtype=np.float64)
        q, s, k, m = table.T
        gamma = exchange.gamma
        self._nodes, self._passes, self._min_share = tuple(nodes), passes, min_share
        self._team = Team([WorkerModel(n.worker_id, _ANY, cap=n.cap) for n in nodes])
        self._slopes = q + k, q + k - (1 - gamma) * k / passes
        self._levels = (
            passes * (s + m) + exchange.t_u,
            passes * (s + m) - (1 - gamma) * m + exchange.t_o + exchange.t_u,
        )
        self._inverse = tuple(1 / np.maximum(slope, _FLAT) for slope in self._slopes)
        self._high = np.array([np.inf if n.cap is None else n.cap * passes for n in nodes])

    def times(self, shares: npt.ArrayLike) -> Array:
        """Return each node's seconds until it is done, the exchange included; a row for each row of ``shares``."""
        own = np.asarray(shares, dtype=np.float64)
        (compute, bound), (fixed, waiting) = self._slopes, self._levels
        seconds: Array = np.maximum(compute * own + fixed, bound * own + waiting)
        return seconds

    def exact(self, batch: float, least: float = 0.0) -> Array:
        """Return the best shares as fractions, each ``least`` or more; what the ceilings cannot hold is left out."""
        return self._within(self._bisect(np.array([batch]), least), least).reshape(-1)

    def seconds(self, batches: Array) -> Array:
        """Return the shortest step of each batch; NaN where the ceilings do not hold it."""
        least = float(self._min_share * self._passes)
        found = np.maximum(self._bisect(batches, least), self.times(np.full(len(self._nodes), least)).max())
        return np.where(batches <= self._high.sum(), found, np.nan)

    def shares(self, batch: int) -> dict[str, int]:
        """Return the best whole shares; they sum to ``batch`` and keep the bounds of `even_split`.

        Raises ``CannotPlan``.
        """
        check_room(self._team, batch, self._passes, self._min_share)
        count = len(self._nodes)
        least = self._min_share * self._passes
        least = least if batch >= least * count else 1
        ceiling = np.maximum(self._high, least)
        low, high = 0.0, float(self._bisect(np.array([float(batch + count)]), least)[0]) * (1 + _SLACK)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if np.floor(self._within(np.array([middle]), least)[0] + _SLACK).sum() >= batch:
                high = middle
            else:
                low = middle
        whole = np.floor(np.minimum(self._within(np.array([high]), least)[0] + _SLACK, np.minimum(ceiling, batch)))
        surplus = int(whole.sum()) - batch
        while surplus > 0:  # from the slowest first: the largest time stays the smallest possible
            slowest = np.where(whole > least, self.times(whole), -np.inf)
            take = np.argsort(-slowest, kind="stable")[: min(surplus, int(np.isfinite(slowest).sum()))]
            whole[take] -= 1
            surplus -= take.size
        return {n.worker_id: int(share) for n, share in zip(self._nodes, whole, strict=True)}

    def _within(self, seconds: Array, least: float) -> Array:
        """Return how many samples each node finishes within each of ``seconds``: a row per time."""
        time, (compute, bound), (fixed, waiting) = seconds[:, None], self._inverse, self._levels
        fit: Array = np.minimum((time - fixed) * compute, (time - waiting) * bound)
        return np.clip(fit, least, np.maximum(self._high, least), out=fit)

    def _bisect(self, batches: Array, least: float) -> Array:
        """Return for each batch the least time within which that many samples are finished."""
        low = np.full(batches.shape, float(self.times(np.zeros(len(self._nodes))).min()))
        high = self.times(np.minimum(batches[:, None], self._high)).max(axis=1)  # one node could do it all by then
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            enough = self._within(middle, least).sum(axis=1) >= batches
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return np.asarray(high)
