"""Cannikin's models, learned while a job trains: two lines per node and what the exchange of gradients costs.

The paper (Middleware'24) measures forward and backward pass apart and the readiness of the first gradients by hooks. A
worker here reports its compute as one number, so two things are inferred. A fixed part of the compute is taken for the
backward pass. And the exchange shows in what a step takes beside the slowest worker's compute: the same at every size
where computing hides it, and falling with the size where it does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rex_operator.planning.curves import Array
from rex_operator.planning.optperf import Exchange, Node
from rex_operator.planning.policies.following import life
from rex_operator.planning.types import WorkerInfo

BACKWARD = 2 / 3
"""Part of the compute that is the backward pass: it does about twice the arithmetic of the forward pass. Ours."""
SIZES = 8
"""Sizes that a line goes by, the last ones that ran; an older one may be of another day. Ours."""
CHANGED = 0.1
"""A time that much off the line, at a size within what it was fitted to, means another speed. Ours."""
_NEAR = 1.3
"""... or within this factor of it."""
_FEWEST = 3
"""Batches that it takes to tell two regimes from one ..."""
_CLEARLY = 0.25
"""... and the part of the squared error that they may leave."""


class NodeLines:
    """Sizes (samples per pass) and seconds of each worker's life.

    Newcomers start with what was measured on another worker of their kind, if there is one.
    """

    def __init__(self) -> None:
        self._points: dict[str, dict[float, float]] = {}
        self._kinds: dict[str, str] = {}

    def team(self, workers: Sequence[WorkerInfo]) -> None:
        """Know these workers and forget others."""
        before, kinds = self._points, self._kinds
        by_kind = {kinds[life]: points for life, points in before.items()}
        self._points = {life(w): before.get(life(w)) or dict(by_kind.get(w.device, {})) for w in workers}
        self._kinds = {life(w): w.device for w in workers}

    def learn(self, worker: WorkerInfo, size: float, seconds: float) -> None:
        """Take in what a pass of ``size`` samples took lately, both positive."""
        points = self._points.setdefault(life(worker), {})
        if len(points) >= 2 and min(points) / _NEAR <= size <= max(points) * _NEAR:
            slope, level = line(points)
            ratio = seconds / (level + slope * size)
            if abs(ratio - 1) > CHANGED:
                for old in points:
                    points[old] *= ratio
        points.pop(size, None)
        points[size] = seconds
        while len(points) > SIZES:
            del points[next(iter(points))]

    def sizes(self, worker: WorkerInfo) -> int:
        """Return how many sizes the worker has run."""
        return len(self._points.get(life(worker), {}))

    def pace(self, worker: WorkerInfo) -> float | None:
        """Return the seconds per sample of the size that ran last; None before any did."""
        points = self._points.get(life(worker))
        if not points:
            return None
        size = next(reversed(points))
        return points[size] / size

    def nodes(self, workers: Sequence[WorkerInfo], caps: Mapping[str, int | None]) -> list[Node] | None:
        """Return the models; None while one of the workers has not run at all."""
        found = []
        for worker in workers:
            points = self._points.get(life(worker))
            if not points:
                return None
            slope, level = line(points)
            found.append(
                Node(
                    worker.worker_id,
                    q=(1 - BACKWARD) * slope,
                    s=(1 - BACKWARD) * level,
                    k=BACKWARD * slope,
                    m=BACKWARD * level,
                    cap=caps[worker.worker_id],
                )
            )
        return found


def line(points: Mapping[float, float]) -> tuple[float, float]:
    """Return slope and level of seconds over size, neither negative.

    Least squares; with one size, or where a line would need a negative number, half of the newest time counts as fixed
    or none of it (the former is how AdaptDL takes a single size).
    """
    sizes, times = np.array(list(points)), np.array(list(points.values()))
    newest = float(times[-1] / sizes[-1])
    if sizes.size < 2:
        return newest / 2, float(times[-1]) / 2
    centred = sizes - sizes.mean()
    slope = float(centred @ times / (centred @ centred))
    level = float(times.mean() - slope * sizes.mean())
    return (slope, level) if slope > 0 and level >= 0 else (newest, 0.0)


class ExchangeBook:
    """What steps take beside the slowest worker's compute, by how long its last pass is."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[float, float]] = {}

    def forget(self) -> None:
        """The team is another one: so is what the exchange costs it."""
        self._seen.clear()

    def learn(self, batch: int, compute_s: float, beside_s: float) -> None:
        """Take in a batch's usual seconds of a pass on the slowest worker, and of the step beside its compute."""
        self._seen.pop(batch, None)
        self._seen[batch] = (compute_s, max(beside_s, 0.0))
        while len(self._seen) > SIZES:
            del self._seen[next(iter(self._seen))]

    def exchange(self) -> Exchange:
        """Return the costs of the exchange: the two regimes that fit best, by least squares over where they part."""
        if not self._seen:
            return Exchange()
        compute, beside = (np.array(column) for column in zip(*sorted(self._seen.values()), strict=True))
        best = Exchange(t_u=float(beside.mean()))
        bound = _CLEARLY * float(((beside - best.t_u) ** 2).sum())
        for part in range(2, compute.size + 1) if compute.size >= _FEWEST else ():
            found = _regimes(compute, beside, part)
            if found is not None and (miss := float(((_predict(found, compute) - beside) ** 2).sum())) < bound:
                best, bound = found, miss
        return best


def _predict(exchange: Exchange, compute: Array) -> Array:
    bound = exchange.t_o - (1 - exchange.gamma) * BACKWARD * compute
    return np.asarray(exchange.t_u + np.maximum(0.0, bound))


def _regimes(compute: Array, beside: Array, part: int) -> Exchange | None:
    """Return the costs if the ``part`` shortest passes are communication-bound; None if those do not look like it."""
    x, y = compute[:part], beside[:part]
    centred = x - x.mean()
    spread = float(centred @ centred)
    if spread <= (0.05 * float(x.mean())) ** 2:
        return None
    fall = min(-float(centred @ y) / spread, BACKWARD)
    if fall <= 0:
        return None
    top = float(y.mean() + fall * x.mean())
    t_u = min(float(beside[part:].mean()) if part < beside.size else np.inf, float(y.min()))
    return Exchange(gamma=1 - fall / BACKWARD, t_o=max(0.0, top - t_u), t_u=t_u)
