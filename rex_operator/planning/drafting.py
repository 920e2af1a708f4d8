"""From a batch to a plan that every worker can hold: passes, shares and learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rex_operator.planning.cooldown import Cooldown
from rex_operator.planning.knowledge import Knowledge
from rex_operator.planning.learning_rate import noticeable
from rex_operator.planning.policies import Policy, Scene
from rex_operator.planning.split import smallest_accumulation
from rex_operator.planning.types import CannotPlan, PlanDraft

STALE = 1.05
"""A plan whose shares make its steps so many times longer than they need be gets others where it runs again."""


class Drafting:
    """Makes drafts by a policy from what is known."""

    def __init__(self, known: Knowledge, policy: Policy, cooldown: Cooldown) -> None:
        self._known, self._policy, self._cooldown = known, policy, cooldown

    def scene(self, running: PlanDraft | None, at: float) -> Scene:
        """Return what the policy gets to see at job time ``at``."""
        return self._known.scene(running, self._cooldown, at)

    def exactly(self, batch: int, accumulation: int, at: float) -> PlanDraft:
        """Return the plan for a batch in so many passes. Raises ``CannotPlan``."""
        known, scene = self._known, self.scene(None, at)
        shares = self._policy.shares(scene, batch, accumulation)
        most, passes = self._passes(scene, shares, accumulation)
        return PlanDraft(
            batch,
            most,
            shares,
            known.learning_rate_factor(batch),
            known.warmup_samples(batch),
            known.spec.batch.initial,
            passes,
        )

    def _passes(self, scene: Scene, shares: Mapping[str, int], accumulation: int) -> tuple[int, dict[str, int]]:
        """Return the most passes that a worker takes, and those of the workers that take fewer."""
        passes = self._policy.passes(scene, shares, accumulation)
        most = max(passes.values(), default=accumulation)
        return most, {worker: own for worker, own in passes.items() if own < most}

    def reshared(self, plan: PlanDraft, shares: Mapping[str, int], at: float) -> PlanDraft:
        """Return the plan with other shares of the same batch."""
        most, passes = self._passes(self.scene(plan, at), shares, plan.accumulation)
        return replace(plan, accumulation=most, local_batches=dict(shares), passes=passes)

    def fresh(self, plan: PlanDraft, at: float) -> PlanDraft:
        """Return the plan with the shares that it would get now, if these are clearly better."""
        try:
            shares = self._policy.shares(self.scene(plan, at), plan.global_batch, plan.accumulation)
        except CannotPlan:
            return plan
        fresh = self.reshared(plan, shares, at)
        ratio = self._known.slower(plan, self._known.speeds(at), fresh, at)
        return plan if ratio is None or ratio * STALE > 1 else fresh

    def rescaled(self, plan: PlanDraft) -> PlanDraft | None:
        """Return the plan with the learning rate that the noise scale now asks for; None while that is the same."""
        factor = self._known.learning_rate_factor(plan.global_batch)
        return replace(plan, learning_rate_factor=factor) if noticeable(plan.learning_rate_factor, factor) else None

    def fitting(self, batch: int, accumulation: int, at: float) -> PlanDraft:
        """Return the plan for a batch, within the bounds and in more passes if memory wants it. Raises ``CannotPlan``.

        The batch is raised only where the workers would not get ``batch.minShare`` samples in each pass; and lowered
        only where memory wants so many passes that raising it would lead beyond ``batch.max``.
        """
        workers, bounds = self._known.workers, self._known.spec.batch
        if len(workers) > bounds.most_workers:
            needed = "a sample" if bounds.min_share == 1 else f"batch.minShare ({bounds.min_share}) samples"
            raise CannotPlan(f"batch.max ({bounds.max}) is too small for {len(workers)} workers; each needs {needed}")
        least = bounds.min_share * len(workers)
        batch = min(max(batch, bounds.min, least), bounds.max)
        if bounds.min_share > 1:
            accumulation = min(accumulation, batch // least)
        ceilings = [self._known.devices.ceiling(w) for w in workers.values()]
        passes = smallest_accumulation(ceilings, batch, accumulation) or accumulation
        if bounds.min_share > 1 and batch < passes * least:
            batch, passes = self._filled(passes, least, sum(c for c in ceilings if c is not None))
        return self.exactly(batch, passes, at)

    def _filled(self, passes: int, least: int, room: int) -> tuple[int, int]:
        """Return the batch, and its passes, next to one that needs ``passes`` but has too few samples for them.

        ``least`` and ``room`` are what one pass of all workers takes at least and at most. Raises ``CannotPlan``.
        """
        bounds = self._known.spec.batch
        if passes * least <= bounds.max:
            return passes * least, passes
        if (passes - 1) * room >= bounds.min:
            return (passes - 1) * room, passes - 1
        raise CannotPlan(
            f"no batch from {bounds.min} to {bounds.max} gives each worker batch.minShare ({bounds.min_share}) samples"
            f" in each pass and fits in memory, which holds {room} samples a pass; widen the range or lower minShare"
        )
