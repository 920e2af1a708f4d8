"""REX's own policy: shares that finish together, and the batch with the best goodput."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from rex_operator.planning.advice import team_question
from rex_operator.planning.climbing import next_rung
from rex_operator.planning.curves import TRUST
from rex_operator.planning.objective import powers, weighs_samples
from rex_operator.planning.patience import HELD, THRESHOLD, Patience, Trodden
from rex_operator.planning.policies.base import About, Base, Rebalance, Rung, Scene
from rex_operator.planning.search import SearchRequest
from rex_operator.planning.split import Team, WorkerModel, even_split, split
from rex_operator.planning.trial import Trial, steps_needed
from rex_operator.planning.types import CannotPlan, PlanDraft
from rex_operator.planning.warmup import BLOCK

UNEVEN = 1.10
"""Shares are also put right when the slowest worker computes this much longer than the fastest ..."""
_SLIGHT = 0.2
"""... even for this share of the usual threshold: an idle device is a loss that the step time hardly shows."""
_LOOKS = 1.5
"""Looks that a trial is expected to need."""


class Rex(Base):
    """Curves per device for the shares, Bayesian search for the batch."""

    about: ClassVar[About] = About(
        name="rex",
        title="REX",
        reference="Kim, Lee, Yu: REX, Future Generation Computer Systems 185, 2026",
        rule=(
            "Shares that finish together by measured device curves; batches by Bayesian search, kept only when a rank"
            " test and a practical margin say that they help."
        ),
        ours="The paper's text is not public: all constants and the design of the parts are this project's.",
        changes=("shares", "batch", "passes"),
    )

    def __init__(self) -> None:
        self._patience = Patience()
        self._trodden = Trodden()

    def restarted(self) -> None:
        """Begin anew to count moves and to trust predictions."""
        self._patience.reset()
        self._trodden.elsewhere()

    def shares(self, scene: Scene, batch: int, accumulation: int) -> dict[str, int]:
        """Return the shares with the shortest step; equal ones until a device was measured. Raises ``CannotPlan``."""
        least = scene.spec.batch.min_share
        for trust in (TRUST, math.inf):
            models = self._models(scene, trust)
            if models is None:
                break
            try:
                return split(models, batch, Team(models).most_passes(accumulation), least)
            except CannotPlan:
                if math.isinf(trust):
                    raise
        return even_split(scene.ceilings(), batch, accumulation, least)

    def passes(self, scene: Scene, shares: Mapping[str, int], accumulation: int) -> dict[str, int]:
        """Return for each worker the number of passes that is fastest for its share."""
        models = self._models(scene, TRUST) if scene.own_passes else None
        if models is None:
            return {}
        team = Team(models)
        taken = team.passes([shares[m.worker_id] for m in models], team.most_passes(accumulation))
        return dict(zip((m.worker_id for m in models), taken.tolist(), strict=True))

    def rebalance(self, scene: Scene) -> Rebalance | None:
        """Return better shares, if patience allows a move now and its predicted gain is worth it.

        In a trial there is no patience: a new batch starts on extrapolated curves, and not its first split is on trial.
        """
        if scene.in_trial:
            return self._better(scene, THRESHOLD)
        changed = scene.change is not None or scene.drifting
        if changed:
            self._patience.disturbed()
        self._patience.kept(scene.step_s)
        if scene.running is not None:
            self._trodden.at(scene.running.local_batches, scene.step_s)
        step = scene.steps[-1].step if scene.steps else 0
        plan = scene.running
        if plan is not None and self._trodden.restless(step, plan.local_batches):
            return self._to_rest(scene, plan, step)
        if not changed and not self._patience.ripe(len(scene.steps)):
            return None
        found = self._better(scene, self._patience.threshold)
        if found is None or self._trodden.leads_nowhere(found.shares, scene.step_s, step):
            return None
        self._trodden.leave(step)
        if changed:
            self._patience.followed()
        elif found.gain is not None:
            self._patience.moved(found.gain, scene.step_s)
        return found

    def _to_rest(self, scene: Scene, plan: PlanDraft, step: int) -> Rebalance | None:
        """Return the best shares of those that ran, where moving on and on led nowhere; None: they run, or may not."""
        best = self._trodden.best(plan.local_batches)
        if best is None or not scene.steps:
            return None
        shares, took = best
        if shares == dict(plan.local_batches):
            if scene.step_s > HELD * took:
                self._trodden.clear()
            return None
        if scene.step_s < (1 + THRESHOLD) * took:
            return None
        compute_s = scene.steps[-1].compute_s
        slowest, spread = scene.names[int(np.argmax(compute_s))], float(compute_s.max() / compute_s.min())
        self._trodden.leave(step)
        self._trodden.come_back()
        return Rebalance(shares, slowest, spread, scene.step_s / took - 1)

    def _better(self, scene: Scene, threshold: float) -> Rebalance | None:
        """Return better shares, if the predicted gain passes ``threshold`` and the noise of the measurement."""
        plan, models = scene.running, self._models(scene, TRUST)
        if plan is None or models is None or len(models) < 2:
            return None
        try:
            shares = self.shares(scene, plan.global_batch, plan.accumulation)
        except CannotPlan:
            return None
        team = Team(models)
        before, after = (np.array([of[m.worker_id] for m in models]) for of in (plan.local_batches, shares))
        own = np.array([plan.passes_of(m.worker_id) for m in models])
        others = team.passes(after, team.most_passes(plan.accumulation))
        now, then = team.times(before, own), team.times(after, others)
        gain = (now.max() + scene.overhead_s) / (then.max() + scene.overhead_s) - 1
        goal = self._goal(scene, plan, float(now.max())) if gain < threshold else gain
        spread_before, spread_after = now.max() / now.min(), then.max() / then.min()
        # The largest of n noisy medians lies this far above their mean though all are equal.
        chance = 2 * scene.error * math.sqrt(2 * math.log(len(models)) + 1)
        worthwhile = goal >= max(threshold, chance) and gain >= _SLIGHT * threshold
        # Where noise made a curve flat, all shares are nearly as good: evening out is no reason to turn them over.
        moved = float(np.maximum(0, after - before).sum()) / plan.global_batch
        uneven = (
            spread_before >= max(UNEVEN * (1 + chance), 1 + moved)
            and spread_before / spread_after >= 1 + max(0.05, chance)
            and gain >= _SLIGHT * threshold
        )
        same = np.array_equal(before, after) and np.array_equal(own, others)
        if same or not (worthwhile or uneven):
            return None
        slowest = models[int(np.argmax(now))].worker_id
        return Rebalance(shares, slowest, float(spread_before), float(gain), float(spread_after))

    def _goal(self, scene: Scene, plan: PlanDraft, slowest_s: float) -> float:
        """Return the gain of throughput where shares could move at once as far as the curves lead, measured or not.

        Moves are kept within what was measured; several of them may be needed for one that is worth it.
        """
        models = self._models(scene, math.inf)
        if models is None:
            return 0.0
        team = Team(models)
        most = team.most_passes(plan.accumulation)
        try:
            shares = split(models, plan.global_batch, most, scene.spec.batch.min_share)
        except CannotPlan:
            return 0.0
        then = team.best_times([shares[m.worker_id] for m in models], most)
        return float((slowest_s + scene.overhead_s) / (then.max() + scene.overhead_s) - 1)

    def climb(self, scene: Scene, trial: Trial) -> Rung | None:
        """Return twice the trial's batch where what is seen and predicted leaves little doubt."""
        models = self._models(scene, TRUST)
        return None if models is None else next_rung(scene, trial, models)

    def search(self, scene: Scene, number: int) -> SearchRequest | None:
        """Return the search for a better batch; None while the noise scale that the objective needs is unknown."""
        spec, plan, models = scene.spec, scene.running, self._models(scene, TRUST)
        wants_noise = weighs_samples(spec.planner.objective)
        if plan is None or models is None or (wants_noise and scene.noise_scale is None):
            return None
        larger, smaller = (scene.cooldown.open(way, scene.at) for way in ("larger", "smaller"))
        return SearchRequest(
            number=number,
            models=tuple(models),
            memory=tuple(scene.devices.limits(w) for w in scene.workers),
            overhead_s=scene.communication,
            batch_min=spec.batch.min,
            batch_max=spec.batch.max,
            batch_initial=spec.batch.initial,
            current=(plan.global_batch, plan.accumulation),
            noise_scale=scene.noise_scale if wants_noise else None,
            measured=scene.measured,
            low=1 if smaller else plan.global_batch,
            high=spec.batch.max if larger else plan.global_batch,
            other_passes=scene.cooldown.open("passes", scene.at),
            min_effect=spec.planner.validation.min_effect,
            min_share=spec.batch.min_share,
            trial_steps=_trial_steps(scene),
            remaining_samples=scene.remaining_samples,
            powers=powers(spec, scene.workers) if spec.planner.objective == "energy" else (),
            team=team_question(spec, scene.workers, scene.law),
        )

    @staticmethod
    def _models(scene: Scene, trust: float) -> list[WorkerModel] | None:
        return scene.devices.models(scene.workers, scene.at, trust, own_passes=scene.own_passes)


def _trial_steps(scene: Scene) -> int:
    """Return the steps that a trial is expected to take: warm-up, settling, and one or two looks alike often."""
    validation = scene.spec.planner.validation
    needed = steps_needed(validation, np.array([s.step_s for s in scene.steps]))
    return validation.warmup_steps + 2 * BLOCK + round(_LOOKS * needed)
