"""BOA: an integer programme that minimises the slowest worker's time by a model per worker."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from rex_operator.planning.policies.base import About, Rebalance, Scene
from rex_operator.planning.policies.following import FEWEST, Following, mean_times, running_shares
from rex_operator.planning.policies.lines import Lines
from rex_operator.planning.split import Team, split
from rex_operator.planning.types import CannotPlan

STEPS = 10
"""Steps that a worker's time is averaged over, so that a straggler of one step is none. Ours."""
WORTH = 0.02
"""Part of the longest predicted time that a new solution must save. Ours."""


class Boa(Following):
    """Batch orchestration: min-max over whole samples."""

    about: ClassVar[About] = About(
        name="boa",
        title="BOA",
        reference="Yang, Kang, Youn: BOA, The Journal of Supercomputing 76(1):47-67, 2020",
        rule=(
            "Min-max integer programme: the whole shares with the shortest longest time by a model per worker; solved"
            " again when the measured times leave the models (static and dynamic stragglers)."
        ),
        ours=(
            "Only the abstract is public. Chosen here: straight lines through a worker's own last sizes, ten steps per"
            " measurement, a new solution for 2 % of the longest time. Solved exactly by bisection."
        ),
        changes=("shares",),
    )

    def __init__(self) -> None:
        super().__init__()
        self._lines = Lines()

    def rebalance(self, scene: Scene) -> Rebalance | None:
        """Return the programme's solution, if it saves enough."""
        plan, times = scene.running, mean_times(scene.steps[-STEPS:])
        if plan is None or times is None or len(scene.steps) < FEWEST:
            return None
        shares = running_shares(scene)
        models = self._lines.models(scene, shares / plan.accumulation, times / plan.accumulation)
        try:
            best = split(models, plan.global_batch, plan.accumulation, scene.spec.batch.min_share)
        except CannotPlan:
            return None
        then = Team(models).times([best[name] for name in scene.names], plan.accumulation)
        if then.max() > (1 - WORTH) * np.max(times):
            return None
        return self.move(scene, {worker: float(share) for worker, share in best.items()}, times)
