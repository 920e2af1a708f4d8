"""What becomes of the plan on trial: go on, correct its shares, veto, keep it or go back.

The planner's state machine issues plans; here is the part of it that lives while a trial runs. What comes out is a
`Turn`, a decision with its record, or None while there is nothing to decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from rex_operator.planning import words
from rex_operator.planning.cooldown import Cooldown, direction
from rex_operator.planning.drafting import reshared
from rex_operator.planning.journal import Grounds
from rex_operator.planning.knowledge import Knowledge
from rex_operator.planning.policies import Policy, Scene
from rex_operator.planning.straggler import SpeedChange
from rex_operator.planning.trial import MAX_ADJUSTMENTS, Trial, steps_needed
from rex_operator.planning.types import CandidateSummary, DecisionKind, Evidence, PlanDraft
from rex_operator.planning.windows import Window


@dataclass(frozen=True, slots=True)
class Turn:
    """A decision about a trial."""

    kind: DecisionKind
    reason: str
    before: PlanDraft
    plan: PlanDraft | None
    """To go on with; None: back to the incumbent's batch."""
    grounds: Grounds = field(default_factory=Grounds)


class Trials:
    """The trials of one job, one at a time; ``running`` is the present one, ``count`` how many were started."""

    def __init__(self, known: Knowledge, policy: Policy, cooldown: Cooldown, count: int) -> None:
        self._known, self._policy, self._cooldown = known, policy, cooldown
        self.running: Trial | None = None
        self.count = count

    def start(
        self, incumbent: PlanDraft, draft: PlanDraft, choice: CandidateSummary, window: Window, at: float
    ) -> None:
        """Put ``draft`` on trial; the window's latest steps are what it is compared with."""
        validation, steps, meter = self._known.spec.planner.validation, window.ripe(), self._known.meter(at)
        keep = 2 * steps_needed(validation, np.array([s.step_s for s in steps]))
        latest = steps[-keep:]
        self.count += 1
        self.running = Trial(
            incumbent=incumbent,
            plan=draft,
            choice=choice,
            reference=meter.spent(incumbent, latest) / self._known.useful(incumbent),
            reference_losses=np.array([s.loss for s in latest if s.loss is not None]),
            useful=self._known.useful(draft),
            spec=validation,
            meter=meter,
        )

    def void(self) -> None:
        """Drop the trial that runs, if any: it tells nothing, so it does not count."""
        if self.running is not None:
            self.running, self.count = None, self.count - 1

    def failed(self, at: float) -> Trial | None:
        """End the trial that runs, if any, with a pause of its direction; return it."""
        trial, self.running = self.running, None
        if trial is not None:
            self._cooldown.failed(direction(key(trial.incumbent), key(trial.plan)), at)
        return trial

    def spoiled(self, window: Window, at: float) -> Turn | None:
        """Give up a trial that cannot go on: its loss diverged, or hardly any step of it can be compared."""
        trial = self.running
        if trial is None:
            return None
        name = words.plan(*key(trial.plan))
        if window.diverged:
            return self.roll_back(trial, "vetoed", f"The loss diverged under {name}.", at)
        latest, fewest = self._known.latest, trial.spec.min_steps
        if latest is not None and latest.step - window.first >= 10 * fewest and len(window.ripe()) < fewest:
            return self.roll_back(trial, "inconclusive", f"Hardly any step of an epoch is full under {name}.", at)
        return None

    def go_on(self, trial: Trial, window: Window, change: SpeedChange | None, scene: Scene) -> Turn | None:
        """Veto, correct shares or judge, in this order, whatever is due."""
        at = scene.at
        overfull = self._known.overfull()
        if overfull is not None:
            worker, part = overfull
            micro_batch = math.ceil(trial.plan.local_batches[worker.worker_id] / trial.plan.accumulation)
            if micro_batch > self._known.spec.batch.min_share:  # with less no worker can go on; and it did run
                self._known.devices.out_of_memory(worker, micro_batch)
            return self.roll_back(trial, "vetoed", words.overfull(trial, worker, part), at)
        if change is not None:
            self.void()
            reason = words.voided(trial, change, window.workers, self._known.workers)
            return self._back(trial, "rebalanced", reason)
        return self._corrected(trial, window, scene) or self._judged(trial, window, at)

    def _corrected(self, trial: Trial, window: Window, scene: Scene) -> Turn | None:
        found = self._policy.rebalance(scene) if trial.adjustments < MAX_ADJUSTMENTS else None
        if found is None:
            return None
        before, draft = trial.plan, reshared(trial.plan, found.shares)
        trial.restart(draft)
        reason = words.rebalanced(found, None, window.workers, self._known.workers)
        return Turn("rebalanced", f"In the trial: {reason}", before, draft, Grounds(expectation=found.gain))

    def _judged(self, trial: Trial, window: Window, at: float) -> Turn | None:
        steps = window.ripe()
        look = self._policy.due(trial, steps)
        if look is None:
            return None
        worse = trial.loss_is_worse(steps)
        if worse is not None:
            reason = f"The loss rose by {worse[1]:.1%} under {words.plan(*key(trial.plan))} (p = {worse[0]:.2g})."
            return self.roll_back(trial, "vetoed", reason, at)
        judgement = self._policy.judge(trial, look, steps)
        if judgement.verdict == "open" and not look.final:
            return None
        reason = words.verdict(trial, judgement)
        self._known.remember(trial.plan, at)
        if judgement.verdict != "better":
            kind: DecisionKind = "rejected" if judgement.verdict == "worse" else "inconclusive"
            return self.roll_back(trial, kind, reason, at, judgement.evidence)
        self.running = None
        self._cooldown.accepted(direction(key(trial.incumbent), key(trial.plan)))
        self._policy.restarted()
        grounds = Grounds(evidence=judgement.evidence, expectation=trial.choice.expected_gain)
        return Turn("accepted", reason, trial.incumbent, trial.plan, grounds)

    def roll_back(
        self, trial: Trial, kind: DecisionKind, reason: str, at: float, evidence: Evidence | None = None
    ) -> Turn:
        """End the trial that runs against it."""
        self.failed(at)
        return self._back(trial, kind, reason, evidence)

    def _back(self, trial: Trial, kind: DecisionKind, reason: str, evidence: Evidence | None = None) -> Turn:
        self._policy.restarted()
        grounds = Grounds(evidence=evidence, expectation=trial.choice.expected_gain)
        return Turn(kind, reason, trial.plan, None, grounds)


def key(plan: PlanDraft) -> tuple[int, int]:
    """Return what identifies a plan to the search: batch and passes."""
    return plan.global_batch, plan.accumulation
