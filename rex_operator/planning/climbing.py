"""How does a job get soon to a batch that is many times larger than its first?

Nothing that was never measured is trusted beyond twice its size (C-167), so a search proposes at most a doubling; and a
verdict takes dozens of steps. From 256 to 32,768 that is seven verdicts on end, none of which anybody doubted. So a
trial may climb: where its first few steps are far better than the incumbent's, and the curves, which know these steps
by now, promise as much again from a batch twice as large, the trial goes on there, rung by rung. Nothing is accepted on
the way: the verdict is on the last rung, against the incumbent that the climb began from. If it fails, all of the climb
is undone, and what the rungs have measured stays known.

The constants are ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rex_operator.planning.candidates import REACH
from rex_operator.planning.objective import log_objective
from rex_operator.planning.policies.base import Rung, Scene
from rex_operator.planning.prediction import chance_to_fit, computing, in_own_passes, predict
from rex_operator.planning.split import Team, WorkerModel
from rex_operator.planning.statistics import usable
from rex_operator.planning.trial import Trial

FAR = 0.10
"""Measured gain over the incumbent, and least gain that the next rung is predicted to add ..."""
ON = 0.05
"""... to this one's."""
LIKELY = 0.4
"""Least chance that the next rung fits in memory: one that does not costs a step, and the climb."""
LEAST = 1.25
"""A rung is at least so many times the one before."""


def next_rung(scene: Scene, trial: Trial, models: Sequence[WorkerModel]) -> Rung | None:
    """Return the batch to climb on to from the trial's present plan, which has run for a few steady steps; or None."""
    plan, batch = trial.plan, trial.plan.global_batch
    if scene.spec.planner.objective == "energy" or batch <= trial.incumbent.global_batch or not scene.early:
        return None
    shown, least = _shown(scene, trial), scene.spec.batch.min_share
    top = min(math.floor(batch * REACH), scene.spec.batch.max)
    if shown < FAR or top < LEAST * batch:
        return None
    if scene.own_passes:
        passes = in_own_passes(models, [top], least)[0][1]
    else:
        room = Team(models).room(1)
        passes = max(plan.accumulation, math.ceil(top / room) if math.isfinite(room) else 1)
        if top < passes * least * len(models):
            return None
    plans = [(batch, plan.accumulation), (top, passes)]
    seconds = predict(models, scene.communication, plans, least)
    if not np.isfinite(seconds).all():
        return None
    value = log_objective(np.array([batch, top], dtype=np.float64), seconds, trial.noise_scale, trial.initial_batch)
    more = math.expm1(float(value[1] - value[0]))
    if more < ON:
        return None
    memory = [scene.devices.limits(worker) for worker in scene.workers]
    compute_s = computing(seconds[1:], scene.communication, plans[1:])
    if chance_to_fit(models, memory, plans[1:], compute_s, least)[0] < LIKELY:
        return None
    return Rung(top, passes, shown, more, len(scene.early))


def _shown(scene: Scene, trial: Trial) -> float:
    """Return the relative gain over the incumbent so far; 0 unless each step was better than the incumbent's median."""
    costs, _ = usable(trial.meter.spent(trial.plan, scene.early) / trial.useful)
    reference, _ = usable(trial.reference)
    if costs.size < len(scene.early) or not reference.size:
        return 0.0
    usual = float(np.median(reference))
    return usual / float(np.median(costs)) - 1 if costs.max() < usual else 0.0
