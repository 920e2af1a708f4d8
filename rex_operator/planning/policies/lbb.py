"""LBB: shares that even out cubic models of the workers' times, then fine tuning, then rapid linear models."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from rex_operator.planning.curves import Array
from rex_operator.planning.policies.base import About, Rebalance, Scene
from rex_operator.planning.policies.cubic import Cubic, evened
from rex_operator.planning.policies.following import FEWEST, Following, life, mean_times, running_shares

FINE, REBUILD = 0.05, 0.3
"""Straggler effect, (max - min) / mean of the times, from which samples move one by one, and from which the models are
built anew (the paper's values; its code has 0.15 for the second)."""
OBSERVED = 30
"""Steps after a rebuild in which there is only fine tuning (the published code's window)."""
STEPS = 10
"""Steps that times are averaged over. Ours."""
PROFILE = 4
"""Sizes per worker at which a profile is complete: a cubic has four coefficients."""
_SIZES = 16


class Lbb(Following):
    """Load-balanced batching."""

    about: ClassVar[About] = About(
        name="lbb",
        title="LBB",
        reference="LBB, The Journal of Supercomputing 80(9):12247-12272, 2024, doi 10.1007/s11227-023-05886-w",
        rule=(
            "Cubic models of time by size; SLSQP for the least difference of times. Straggler effect below 5 %:"
            " nothing; below 30 %: one sample from the slowest to the fastest; above: rapid linear models, solve again,"
            " then 30 steps of fine tuning only."
        ),
        ours=(
            "The paper profiles sizes in powers of two before training. Here the profile is what has run: until four"
            " sizes are known or the shares are even, each window's sizes join it and the shares are solved anew, by"
            " lines at first. Thresholds are the paper's, not its code's; times are means of ten steps; a sample moves"
            " once per plan, not per step."
        ),
        changes=("shares",),
    )

    def __init__(self) -> None:
        super().__init__()
        self._profiles: dict[str, dict[float, float]] = {}
        self._profiling = True
        self._observing = 0
        """Step up to which there is only fine tuning."""

    def restarted(self) -> None:
        """Profile what is new; the weights and profiles of those who stay are kept."""
        self._profiling, self._observing = True, 0

    def rebalance(self, scene: Scene) -> Rebalance | None:
        """Return the next shares by the straggler effect."""
        plan, times = scene.running, mean_times(scene.steps[-STEPS:])
        if plan is None or times is None or len(scene.steps) < FEWEST or len(scene.names) < 2:
            return None
        shares, step = running_shares(scene), scene.steps[-1].step
        effect = float(np.ptp(times) / times.mean())
        if effect < FINE:
            self._profiling = False
            return None
        if self._profiling:
            return self._solve(scene, self._profiled(scene, shares, times), shares, times)
        if effect >= REBUILD and step >= self._observing:
            self._observing = step + OBSERVED
            passes = plan.accumulation
            models = [
                model.rebuilt(t / passes, b / passes)
                for model, t, b in zip(self._models(scene), times, shares, strict=True)
            ]
            return self._solve(scene, models, shares, times)
        wanted = shares.copy()
        wanted[int(times.argmax())] -= 1
        wanted[int(times.argmin())] += 1
        return self.move(scene, dict(zip(scene.names, wanted.tolist(), strict=True)), times)

    def _profiled(self, scene: Scene, shares: Array, times: Array) -> list[Cubic]:
        """Let the present sizes join the profile; return the models."""
        lives = {w.worker_id: life(w) for w in scene.workers}
        self._profiles = {name: self._profiles.get(name, {}) for name in lives.values()}
        passes = scene.running.accumulation if scene.running else 1
        for worker, share, seconds in zip(scene.names, shares.tolist(), times.tolist(), strict=True):
            profile = self._profiles[lives[worker]]
            profile[share / passes] = seconds / passes
            while len(profile) > _SIZES:
                del profile[next(iter(profile))]
        self._profiling = min(len(profile) for profile in self._profiles.values()) < PROFILE
        return self._models(scene)

    def _models(self, scene: Scene) -> list[Cubic]:
        """Return the workers' models; for one that was never profiled, no fixed cost."""
        lives = {w.worker_id: life(w) for w in scene.workers}
        return [
            Cubic.fit(profile) if (profile := self._profiles.get(lives[name])) else Cubic((0.0, 1.0, 0.0, 0.0), 1, 1)
            for name in scene.names
        ]

    def _solve(self, scene: Scene, models: list[Cubic], shares: Array, times: Array) -> Rebalance | None:
        plan, ceilings = scene.running, scene.ceilings()
        if plan is None:
            return None
        passes = plan.accumulation
        room = plan.global_batch / passes
        most = np.array([room if (cap := ceilings[n]) is None else float(cap) for n in scene.names])
        least = min(float(scene.spec.batch.min_share), room / len(scene.names))
        wanted = passes * evened(models, shares / passes, least, np.maximum(most, least))
        return self.move(scene, dict(zip(scene.names, wanted.tolist(), strict=True)), times)
