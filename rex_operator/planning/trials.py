"""What becomes of the plan on trial: go on, correct its shares, veto, keep it or go back.

The planner's state machine issues plans; here is the part of it that lives while a trial runs. What comes out is a
`Turn`, a decision with its record, or None while there is nothing to decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rex_operator.planning import words
from rex_operator.planning.budget import BudgetState, ErrorBudget
from rex_operator.planning.cooldown import MATERIAL, Cooldown, direction
from rex_operator.planning.drafting import Drafting
from rex_operator.planning.journal import Grounds
from rex_operator.planning.knowledge import Knowledge
from rex_operator.planning.objective import useful_samples
from rex_operator.planning.policies import Policy, Scene
from rex_operator.planning.straggler import SpeedChange
from rex_operator.planning.trial import (
    FAR_OFF,
    MAX_ADJUSTMENTS,
    MAX_TRANSLATIONS,
    MOST_ADJUSTMENTS,
    Trial,
    steps_needed,
)
from rex_operator.planning.trial_bill import Bill
from rex_operator.planning.types import CandidateSummary, CannotPlan, Cost, DecisionKind, Evidence, PlanDraft
from rex_operator.planning.verdict import Judgement
from rex_operator.planning.windows import GroupStep, Window

ELSEWHERE = 1.5
"""A noise scale that changed by this factor is another one."""
_SHORTEST_S = 1e-9
"""Less is no time that a step can take."""


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

    def __init__(
        self,
        known: Knowledge,
        policy: Policy,
        cooldown: Cooldown,
        drafting: Drafting,
        count: int,
        budget: BudgetState | None = None,
    ) -> None:
        self._known, self._policy, self._cooldown, self._drafting = known, policy, cooldown, drafting
        self.budget = ErrorBudget(known.spec.planner.validation.alpha, budget)
        self.running: Trial | None = None
        self.count = count
        self._bill: Bill | None = None
        self._wary = True

    def start(
        self, incumbent: PlanDraft, draft: PlanDraft, choice: CandidateSummary, window: Window, at: float
    ) -> None:
        """Put ``draft`` on trial; the window's latest steps are what it is compared with."""
        validation, steps, meter = self._known.spec.planner.validation, window.ripe(), self._known.meter(at)
        keep = 2 * steps_needed(validation, np.array([s.step_s for s in steps]), level=self.budget.level)
        latest = steps[-keep:]
        useful = self._known.useful(incumbent)
        self.count += 1
        usual_s = max(_SHORTEST_S, float(np.median([s.step_s for s in latest])))
        self._bill = Bill(at, self._step(), useful / usual_s)
        self.running = Trial(
            incumbent=incumbent,
            plan=draft,
            choice=choice,
            reference=meter.spent(incumbent, latest) / useful,
            reference_losses=np.array([s.loss for s in latest if s.loss is not None]),
            useful=self._known.useful(draft),
            spec=validation,
            meter=meter,
            reference_last=latest[-1].step,
            incumbent_useful=useful,
            noise_scale=self._known.noise_scale(),
            initial_batch=self._known.spec.batch.initial,
            speeds=self._known.speeds(at),
            level=self.budget.level,
            wary=self._wary,
        )

    def cost(self, trial: Trial, at: float) -> Cost | None:
        """Return what a trial cost that ends now, or has just ended."""
        return None if self._bill is None else self._bill.total(trial, at, self._step())

    def _step(self) -> int:
        return self._known.latest.step if self._known.latest is not None else 0

    def void(self) -> None:
        """Drop the trial that runs, if any: it tells nothing, so it does not count."""
        if self.running is not None:
            self.running, self.count = None, self.count - 1

    def team_changed(self) -> None:
        """Drop the trial that runs; what begins may take a hundred steps to get to its pace, and all of them alike."""
        self.void()
        self._wary = True

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
        if self._bill is not None and not trial.back:
            self._bill.seen(window.first)
        name = words.plan(*key(trial.plan))
        if window.diverged:
            when = "after" if trial.back else "under"
            return self.roll_back(trial, "vetoed", f"The loss diverged {when} {name}.", at)
        latest, fewest = self._known.latest, trial.spec.min_steps
        if latest is not None and latest.step - window.first >= 10 * fewest and len(window.ripe()) < fewest:
            return self.roll_back(trial, "inconclusive", f"Hardly any step of an epoch is full under {name}.", at)
        return None

    def go_on(self, trial: Trial, window: Window, change: SpeedChange | None, scene: Scene) -> Turn | None:
        """Veto, correct shares or judge, in this order, whatever is due."""
        at = scene.at
        if change is not None or (scene.drifting and not trial.back and self._known.moved(trial.speeds, at)):
            return self._carried_over(trial, window, change, scene)
        if trial.back:
            return self._judged(trial, window, at)
        overfull = self._known.overfull()
        if overfull is not None:
            worker, part = overfull
            micro_batch = trial.plan.micro_batch(worker.worker_id)
            if micro_batch > self._known.spec.batch.min_share:  # with less no worker can go on; and it did run
                self._known.devices.out_of_memory(worker, micro_batch)
            reason = words.overfull(trial, worker, part)
            return self.stepped_down(reason) or self.roll_back(trial, "vetoed", reason, at)
        self._revalued(trial)
        return self._climbed(trial, scene) or self._corrected(trial, window, scene) or self._judged(trial, window, at)

    def _revalued(self, trial: Trial) -> None:
        """Go by the noise scale of now where it has clearly left the one that the trial began with.

        It is frozen otherwise, lest its wandering decide; but a trial that takes long in a run's first minutes would be
        judged by what samples were worth long ago.
        """
        now, before = self._known.noise_scale(), trial.noise_scale
        if trial.look > 1 or now is None or before is None or max(now, before) < ELSEWHERE * min(now, before):
            return
        objective, initial = self._known.spec.planner.objective, trial.initial_batch
        useful, old = (
            useful_samples(objective, plan.global_batch, now, initial) for plan in (trial.plan, trial.incumbent)
        )
        trial.revalue(now, useful, old)

    def _carried_over(self, trial: Trial, window: Window, change: SpeedChange | None, scene: Scene) -> Turn | None:
        """Go on with other shares, the reference carried over to the new speeds; or give up, where that cannot be.

        ``change`` is None where speeds have drifted away.
        """
        lost = trial.back or trial.translations >= MAX_TRANSLATIONS or not self._followed(trial, scene.at)
        if lost and change is not None:
            self.void()
            reason = words.voided(trial, change, window.workers, self._known.workers)
            return self._back(trial, "rebalanced", reason, scene.at)
        found = self._policy.rebalance(scene)
        if found is None:
            return None
        before, draft = trial.plan, self._drafting.reshared(trial.plan, found.shares, scene.at)
        trial.plan = draft
        reason = words.rebalanced(found, change, window.workers, self._known.workers)
        return Turn("rebalanced", f"In the trial: {reason}", before, draft, Grounds(expectation=found.gain))

    def _followed(self, trial: Trial, at: float) -> bool:
        """Carry the reference over to the speeds of now, under shares that fit these: else stale ones would lose."""
        incumbent = self._drafting.fresh(trial.incumbent, at)
        ratio = self._known.slower(trial.incumbent, trial.speeds, incumbent, at)
        if ratio is None:
            return False
        trial.translate(ratio, self._known.speeds(at), incumbent)
        return True

    def _climbed(self, trial: Trial, scene: Scene) -> Turn | None:
        free = trial.look == 1 and not trial.at_the_top and scene.running == trial.plan
        rung = self._policy.climb(scene, trial) if free else None
        if rung is None:
            return None
        try:
            draft = self._drafting.exactly(rung.global_batch, rung.accumulation, scene.at)
        except CannotPlan:
            return None
        self._known.remember(trial.plan, scene.at)
        before, step = trial.plan, self._step()
        if self._bill is not None:
            self._bill.climbed(step, trial.useful)
        useful = useful_samples(
            self._known.spec.planner.objective, draft.global_batch, trial.noise_scale, trial.initial_batch
        )
        trial.climb(draft, useful, rung.shown, (1 + rung.shown) * (1 + rung.more) - 1)
        return Turn(
            "climbed",
            words.climbed(trial, before, rung),
            before,
            draft,
            Grounds(expectation=trial.choice.expected_gain),
        )

    def stepped_down(self, reason: str) -> Turn | None:
        """Let a trial that climbed too far for the workers' memory go on a rung lower; None where there is none."""
        trial = self.running
        if trial is None or trial.back or trial.below is None or not self._known.fits(trial.below[0]):
            return None
        if self._bill is not None:
            self._bill.climbed(self._step(), trial.useful)
        before = trial.plan
        trial.step_down()
        lower = words.plan(*key(trial.plan))
        return Turn("ceiling", f"In the trial: {reason.rstrip('.')}; it goes on with {lower}.", before, trial.plan)

    def _corrected(self, trial: Trial, window: Window, scene: Scene) -> Turn | None:
        early = trial.look == 1 and trial.adjustments < MOST_ADJUSTMENTS
        found = self._policy.rebalance(scene) if early else None
        if found is None or (trial.adjustments >= MAX_ADJUSTMENTS and (found.gain or 0.0) < FAR_OFF):
            return None
        before, draft = trial.plan, self._drafting.reshared(trial.plan, found.shares, scene.at)
        trial.restart(draft)
        reason = words.rebalanced(found, None, window.workers, self._known.workers)
        return Turn("rebalanced", f"In the trial: {reason}", before, draft, Grounds(expectation=found.gain))

    def _judged(self, trial: Trial, window: Window, at: float) -> Turn | None:
        steps = window.ripe()
        look = self._policy.due(trial, steps)
        if look is None and not trial.ends(steps):
            return None
        worse = None if trial.back else trial.loss_is_worse(steps)
        if worse is not None:
            reason = f"The loss rose by {worse[1]:.1%} under {words.plan(*key(trial.plan))} (p = {worse[0]:.2g})."
            return self.roll_back(trial, "vetoed", reason, at)
        if look is None:
            return self._switch_back(trial, steps, at)
        if look.number == 1:
            self._known.remember(trial.plan, at)
            self.budget.spend()
        judgement = self._policy.judge(trial, look, steps)
        if judgement.verdict == "open" and not look.final:
            return self._switch_back(trial, steps, at) if trial.ends(steps) else None
        return self._ended(trial, judgement, at)

    def _switch_back(self, trial: Trial, steps: Sequence[GroupStep], at: float) -> Turn:
        """Let the incumbent run again, for the second half of the reference."""
        self._known.remember(trial.plan, at)
        if self._bill is not None:
            self._bill.left(self._step())
        if self._known.moved(trial.speeds, at):
            self._followed(trial, at)
        trial.go_back(steps)
        return Turn("switchback", words.switchback(trial), trial.plan, trial.incumbent)

    def _ended(self, trial: Trial, judgement: Judgement, at: float) -> Turn:
        evidence, self._wary = judgement.evidence, False
        if evidence is not None:
            evidence = evidence.model_copy(update={"budget_spent": self.budget.spent})
        reason = words.verdict(trial, judgement)
        if not trial.back:
            self._known.remember(trial.plan, at)
        if judgement.verdict != "better":
            kind: DecisionKind = "rejected" if judgement.verdict == "worse" else "inconclusive"
            turn = self.roll_back(trial, kind, reason, at, evidence)
            if kind == "inconclusive" and evidence is not None and abs(evidence.drift or 0.0) >= MATERIAL - 1:
                self._cooldown.lift()  # the incumbent itself is not what it was: this says nothing about the batch
            return turn
        self.budget.earn()
        self.running = None
        self._cooldown.accepted(direction(key(trial.incumbent), key(trial.plan)))
        self._policy.restarted()
        grounds = Grounds(evidence=evidence, expectation=trial.choice.expected_gain, cost=self.cost(trial, at))
        return Turn("accepted", reason, trial.incumbent, self._drafting.fresh(trial.plan, at), grounds)

    def roll_back(
        self, trial: Trial, kind: DecisionKind, reason: str, at: float, evidence: Evidence | None = None
    ) -> Turn:
        """End the trial that runs against it."""
        self.failed(at)
        return self._back(trial, kind, reason, at, evidence)

    def _back(self, trial: Trial, kind: DecisionKind, reason: str, at: float, evidence: Evidence | None = None) -> Turn:
        self._policy.restarted()
        cost = self.cost(trial, at)
        grounds = Grounds(evidence=evidence, expectation=trial.choice.expected_gain, cost=cost)
        return Turn(kind, reason, trial.plan, None, grounds)


def key(plan: PlanDraft) -> tuple[int, int]:
    """Return what identifies a plan to the search: batch and passes."""
    return plan.global_batch, plan.accumulation
