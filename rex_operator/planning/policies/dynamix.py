"""In the style of DYNAMIX: a learned policy turns every worker's batch up or down, every few steps.

The paper (arXiv 2510.08522) trains one central agent by PPO. What it sees is told only in outline (network,
utilisation, statistical efficiency), and actions, reward and parameters not at all. Here each worker's share is
multiplied by one of seven factors, by a small network that all workers have in common; it was trained by PPO on random
simulated clusters (`benchmarks.dynamix_training`, which also writes its numbers) and does not learn on the job. The
most likely action is taken, so that the same measurements lead to the same plans.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from rex_operator.planning.curves import Array
from rex_operator.planning.noise import efficiency
from rex_operator.planning.policies.base import About, Adoption, Rebalance, Scene
from rex_operator.planning.policies.dynamix_network import HIDDEN, OUT
from rex_operator.planning.policies.following import Following, life, mean_times, running_shares
from rex_operator.planning.split import smallest_accumulation

FACTORS = np.array([0.5, 0.8, 0.93, 1.0, 1.07, 1.25, 2.0])
"""What an action does to a worker's share; ours."""
EVERY = 20
"""Steps that count between two decisions; ours."""
FEATURES = 9
USUAL_ELASTICITY = 0.8
"""Percent of time per percent of share, until a worker has run two sizes."""
_MOVED = 0.05
"""Logarithm of the shares' ratio from which two of them tell an elasticity."""


def features(
    times: Array, shares: Array, step_s: Array, noise_scale: Array, most: Array, elasticity: Array, gain: Array
) -> Array:
    """Return what the network sees, (..., workers, FEATURES).

    ``times`` (seconds of compute per step), ``shares`` and ``elasticity`` are (..., workers), the others (...):
    seconds per step, noise scale in samples, largest batch, and the logarithm of the goodput's last change.
    """
    batch = shares.sum(axis=-1)
    slowest = times.max(axis=-1)
    mean = np.exp(np.log(times).mean(axis=-1, keepdims=True))
    network = np.clip(1 - slowest / step_s, 0, 1)
    waste = np.log2(batch / noise_scale)
    worth = noise_scale / (noise_scale + batch)
    shared = np.stack([network, np.clip(waste / 4, -1.5, 1.5), worth, np.clip(gain * 4, -1, 1)], axis=-1)
    room = np.clip(np.log2(most / batch) / 2, 0, 1)
    own = np.stack(
        [
            np.clip(np.log2(times / mean), -2, 2),
            times / slowest[..., None],
            elasticity,
            np.broadcast_to(room[..., None], times.shape),
            np.ones_like(times),
        ],
        axis=-1,
    )
    whole = np.broadcast_to(shared[..., None, :], (*times.shape, shared.shape[-1]))
    return np.concatenate([own, whole], axis=-1)


def elasticities(known: Array, before: tuple[Array, Array], now: tuple[Array, Array]) -> Array:
    """Return the elasticities after a look at two points (shares, seconds); where shares hardly moved, the known."""
    moved = np.log(now[0] / before[0])
    enough = np.abs(moved) >= _MOVED
    fresh = np.clip(np.log(now[1] / before[1]) / np.where(enough, moved, 1.0), 0.0, 1.2)
    return np.asarray(np.where(enough, (known + fresh) / 2, known))


def logits(seen: Array, hidden: Array, out: Array) -> Array:
    """Return the network's preference for each action; the last row of each table is the offset."""
    inner = np.tanh(seen @ hidden[:-1] + hidden[-1])
    return np.asarray(inner @ out[:-1] + out[-1])


class Dynamix(Following):
    """Shares, and with them the batch, by a trained network."""

    about: ClassVar[About] = About(
        name="dynamix",
        title="DYNAMIX style",
        reference="Wang, He, Dai: DYNAMIX, arXiv 2510.08522, 2025",
        rule=(
            "Every 20 steps a network trained by PPO multiplies each worker's share by one of seven factors, by the"
            " state of network, worker and statistical efficiency; the batch is their sum."
        ),
        ours=(
            "In the paper's style only: its actions, reward, network and parameters are not public. Ours was trained on"
            " random simulated clusters (benchmarks.dynamix_training), and does not go on learning."
            " Goodput is the only objective."
        ),
        changes=("shares", "batch"),
    )

    def __init__(self) -> None:
        super().__init__()
        self._adoption: Adoption | None = None
        self._looked = 0
        self._team: tuple[str, ...] = ()
        self._known = self._shares = self._times = np.zeros(0)
        self._goodput = math.nan

    def rebalance(self, scene: Scene) -> Rebalance | None:
        """Return other shares of the same batch every 20 steps; another batch is left to `adopt`."""
        plan, phi = scene.running, scene.noise_scale
        if plan is None or phi is None or len(scene.steps) < EVERY:
            return None
        if 0 <= scene.steps[-1].step - self._looked < EVERY:
            return None
        self._looked = scene.steps[-1].step
        recent = scene.steps[-EVERY:]
        times, step_s = mean_times(recent), float(np.mean([s.step_s for s in recent]))
        if times is None or not 0 < step_s < math.inf:
            return None
        bounds, shares = scene.spec.batch, running_shares(scene)
        step_s = max(step_s, float(times.max()))
        seen = self._look(scene, times, shares, step_s, max(phi, 1e-3))
        actions = np.argmax(logits(seen, HIDDEN, OUT), axis=-1)
        wanted = shares * FACTORS[actions]
        batch = round(min(max(wanted.sum(), bounds.min, bounds.min_share * len(shares)), bounds.max))
        wanted *= batch / wanted.sum()
        named = dict(zip(scene.names, wanted.tolist(), strict=True))
        if batch == plan.global_batch:
            return self.move(scene, named, times)
        passes = smallest_accumulation(list(scene.ceilings().values()), batch) or plan.accumulation
        self._weights = {life(w): named[w.worker_id] / batch for w in scene.workers}
        why = f"The network turns the shares {', '.join(f'x{f:g}' for f in FACTORS[actions][:8])}: batch {batch}."
        self._adoption = Adoption(batch, passes, why)
        return None

    def adopt(self, scene: Scene) -> Adoption | None:
        """Return the batch that the shares sum to, if that is another one."""
        found, self._adoption = self._adoption, None
        return found

    def _look(self, scene: Scene, times: Array, shares: Array, step_s: float, phi: float) -> Array:
        """Return what the network sees, and remember it for the next look."""
        lives = {w.worker_id: life(w) for w in scene.workers}
        team = tuple(lives[name] for name in scene.names)
        batch = float(shares.sum())
        goodput = batch / step_s * efficiency(phi, batch, scene.spec.batch.initial)
        if team != self._team:
            self._team, self._known = team, np.full(times.shape, USUAL_ELASTICITY)
            gain = 0.0
        else:
            self._known = elasticities(self._known, (self._shares, self._times), (shares, times))
            gain = math.log(goodput / self._goodput)
        self._shares, self._times, self._goodput = shares, times, goodput
        return features(
            times,
            shares,
            np.array(step_s),
            np.array(phi),
            np.array(float(scene.spec.batch.max)),
            self._known,
            np.array(gain),
        )
