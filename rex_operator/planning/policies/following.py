"""What the published balancers have in common: the next shares follow from the running ones and their times.

They start from equal shares, for nothing is measured yet, and remember the shares that they came to as weights per
worker. Their papers know no membership that changes; here workers that stay keep their weights, and a newcomer gets the
mean of its kind, or of all: as good a start as the paper's own data can give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rex_operator.planning.curves import Array
from rex_operator.planning.policies.base import Base, Rebalance, Scene
from rex_operator.planning.rounding import settle
from rex_operator.planning.split import even_split
from rex_operator.planning.types import CannotPlan, WorkerInfo
from rex_operator.planning.windows import GroupStep

FEWEST = 3
"""Steps that a balancer acts on, where a change of a worker's speed has cut off the earlier ones."""


class Following(Base):
    """A policy with weights per worker's life."""

    def __init__(self) -> None:
        self._weights: dict[str, float] = {}

    def shares(self, scene: Scene, batch: int, accumulation: int) -> dict[str, int]:
        """Return shares by the weights; equal ones while there are none. Raises ``CannotPlan``."""
        weights = self._team_weights(scene)
        least = scene.spec.batch.min_share
        if weights is None:
            return even_split(scene.ceilings(), batch, accumulation, least)
        total = sum(weights.values())
        wanted = {worker: batch * weight / total for worker, weight in weights.items()}
        return settle(wanted, scene.ceilings(), batch, accumulation, least)

    def move(self, scene: Scene, wanted: Mapping[str, float], times: Array) -> Rebalance | None:
        """Return the move to what is ``wanted`` (samples per step), if it is one that can be run.

        ``times`` are the workers' present compute seconds in the order of ``scene.names``.
        """
        plan = scene.running
        if plan is None:
            return None
        try:
            shares = settle(wanted, scene.ceilings(), plan.global_batch, plan.accumulation, scene.spec.batch.min_share)
        except CannotPlan:
            return None
        self._weights = {life(w): shares[w.worker_id] / plan.global_batch for w in scene.workers}
        if shares == dict(plan.local_batches):
            return None
        return Rebalance(shares, scene.names[int(np.argmax(times))], float(times.max() / times.min()))

    def _team_weights(self, scene: Scene) -> dict[str, float] | None:
        known = {w: self._weights[life(w)] for w in scene.workers if life(w) in self._weights}
        if not known:
            return None
        by_kind: dict[str, list[float]] = {}
        for worker, weight in known.items():
            by_kind.setdefault(worker.device, []).append(weight)
        everybody = list(known.values())
        return {
            w.worker_id: known[w] if w in known else float(np.mean(by_kind.get(w.device, everybody)))
            for w in scene.workers
        }


def life(worker: WorkerInfo) -> str:
    """Return the name of one life of a worker."""
    return f"{worker.worker_id}/{worker.incarnation}"


def mean_times(steps: Sequence[GroupStep]) -> Array | None:
    """Return each worker's mean compute seconds over the steps; None while they do not tell (none, zero, NaN)."""
    if not steps:
        return None
    times = np.array([s.compute_s for s in steps]).mean(axis=0)
    return times if np.isfinite(times).all() and (times > 0).all() else None


def running_shares(scene: Scene) -> Array:
    """Return the running plan's shares in the order of ``scene.names``."""
    plan = scene.running
    return np.array([plan.local_batches[name] for name in scene.names] if plan else [], dtype=np.float64)


class EpochEnd:
    """Tells when a pass over the data has ended, and which of the running plan's steps were part of it."""

    def __init__(self) -> None:
        self._epoch: int | None = None

    def passed(self, scene: Scene) -> Sequence[GroupStep]:
        """Return the steps of the passes that ended since the last call; none while no pass has ended."""
        since, self._epoch = self._epoch, scene.epoch
        if since is None or scene.epoch <= since:
            return ()
        return [s for s in scene.steps if since <= s.epoch < scene.epoch]
