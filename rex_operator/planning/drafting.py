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


class Drafting:
    """Makes drafts by a policy from what is known."""

    def __init__(self, known: Knowledge, policy: Policy, cooldown: Cooldown) -> None:
        self._known, self._policy, self._cooldown = known, policy, cooldown

    def scene(self, running: PlanDraft | None, at: float) -> Scene:
        """Return what the policy gets to see at job time ``at``."""
        return self._known.scene(running, self._cooldown, at)

    def exactly(self, batch: int, accumulation: int, at: float) -> PlanDraft:
        """Return the plan for a batch in so many passes. Raises ``CannotPlan``."""
        known = self._known
        return PlanDraft(
            batch,
            accumulation,
            self._policy.shares(self.scene(None, at), batch, accumulation),
            known.learning_rate_factor(batch),
            known.warmup_samples(batch),
            known.spec.batch.initial,
        )

    def rescaled(self, plan: PlanDraft) -> PlanDraft | None:
        """Return the plan with the learning rate that the noise scale now asks for; None while that is the same."""
        factor = self._known.learning_rate_factor(plan.global_batch)
        return replace(plan, learning_rate_factor=factor) if noticeable(plan.learning_rate_factor, factor) else None

    def fitting(self, batch: int, accumulation: int, at: float) -> PlanDraft:
        """Return the plan for a batch, within the bounds and in more passes if memory wants it. Raises ``CannotPlan``.

        The batch is raised only where the workers would not get a sample each.
        """
        workers, bounds = self._known.workers, self._known.spec.batch
        if len(workers) > bounds.max:
            raise CannotPlan(f"batch.max ({bounds.max}) is too small for {len(workers)} workers; each needs a sample")
        batch = min(max(batch, bounds.min, len(workers)), bounds.max)
        ceilings = [self._known.devices.ceiling(w) for w in workers.values()]
        return self.exactly(batch, smallest_accumulation(ceilings, batch, accumulation) or accumulation, at)


def reshared(plan: PlanDraft, shares: Mapping[str, int]) -> PlanDraft:
    """Return the plan with other shares of the same batch."""
    return replace(plan, local_batches=dict(shares))
