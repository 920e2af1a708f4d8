"""When is another batch looked for, and what becomes of the answer?

The part of the planner's state machine that lives between two trials. It asks for a search when the running plan is
known well enough and something new may be found, and takes the answer: a trial starts, or the job has converged.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rex_operator.planning import words
from rex_operator.planning.advice import Advice
from rex_operator.planning.cooldown import MATERIAL, Cooldown
from rex_operator.planning.drafting import Drafting
from rex_operator.planning.history import apart
from rex_operator.planning.journal import Grounds
from rex_operator.planning.knowledge import Knowledge
from rex_operator.planning.patience import Convergence
from rex_operator.planning.policies import Policy
from rex_operator.planning.search import SearchRequest, SearchResult
from rex_operator.planning.state import PlannerState
from rex_operator.planning.trial import steps_needed
from rex_operator.planning.trials import Trials, Turn, key
from rex_operator.planning.types import CandidateSummary, CannotPlan, PlanDraft
from rex_operator.planning.windows import Window

_NO_NOISE = "No noise scale can be had (it takes two workers, or two passes, with gradient norms), so the batch stays."

BOLD = 0.20
"""Expected gain for whose trial ``minSteps`` steps of the incumbent are reference enough, whatever their dependence."""


class Seeking:
    """Searches of one job, one at a time. ``number`` is that of the last one."""

    def __init__(
        self,
        known: Knowledge,
        policy: Policy,
        cooldown: Cooldown,
        drafting: Drafting,
        trials: Trials,
        saved: PlannerState | None,
    ) -> None:
        self._known, self._policy, self._cooldown = known, policy, cooldown
        self._drafting, self._trials = drafting, trials
        self.convergence = Convergence(saved.converged if saved else False)
        self.number = saved.searches if saved else 0
        self.advice: Advice | None = None
        self._pending: int | None = None
        self._nothing_bold: int | None = None
        """First step of a window whose search, asked early, had nothing of which few steps would tell enough."""
        self._speeds: dict[str, float] = {}
        """The workers' slownesses when a trial ended or a search was answered last."""
        self._learned: tuple[Window | None, int] = (None, 0)
        self._trying = False

    def team_changed(self) -> None:
        """Begin anew: other workers may make another batch the best."""
        self._pending = self.advice = None
        self.convergence.leave()

    def plan_changed(self) -> None:
        """Take no answer any more to what was asked before."""
        self._pending = None

    def ask(self, running: PlanDraft, window: Window, at: float) -> SearchRequest | Turn | None:
        """Return the search that is due, or what is to be done for one to be possible."""
        known, search = self._known, self._known.spec.planner.search
        self._feel(window, at)
        if self._pending is not None or not self._cooldown.quiet(at):
            return None
        if not self.convergence.search_due(at, known.noise_scale()):
            return None
        if self._alone and running.accumulation > 1 and known.noise.vague:
            return None  # in one pass it would not tell any more
        fewest = known.spec.planner.validation.min_steps
        if len(window.ripe()) < fewest or (window.first == self._nothing_bold and not self._ripe(window)):
            return None
        known.remember(running, at)
        request = self._policy.search(self._drafting.scene(running, at), self.number + 1)
        if request is None:
            hopeless = known.noise.hopeless and "batch" in self._policy.about.changes
            return self._in_two_passes(running, at) if hopeless else None
        if self._trials.count >= search.max_trials:
            if request.team is None:
                return self._converged(self._no_more_trials(running), running, at)
            # The batch stays; which workers pay for themselves can be told all the same.
            request = replace(request, low=running.global_batch, high=running.global_batch, other_passes=False)
        self.number = self._pending = request.number
        return request

    def _feel(self, window: Window, at: float) -> None:
        """Ask anew, and without pauses, where workers' speeds are no longer those that the last answers were for."""
        learned = window, self._known.gauge.learned
        if learned == self._learned:
            return
        self._learned, now = learned, self._known.speeds(at)
        if self._trying or now.keys() != self._speeds.keys():
            self._trying, self._speeds = False, now
        elif apart(now, self._speeds) > MATERIAL:
            self._speeds = now
            self._cooldown.lift()
            self.convergence.doubt()

    def _in_two_passes(self, running: PlanDraft, at: float) -> Turn | None:
        """Let a worker that is alone tell its noise scale, which shows between the passes of a step only."""
        spec = self._known.spec
        divides = running.accumulation == 1 < running.global_batch // spec.batch.min_share
        if not (self._alone and divides and self._trials.count < spec.planner.search.max_trials):
            return self._converged(_NO_NOISE, running, at)
        draft = self._drafting.fitting(running.global_batch, 2, at)
        return Turn("adopted", words.in_two_passes(running), running, draft)

    def expects(self, request: SearchRequest, result: SearchResult) -> bool:
        """Return whether this is the answer that is waited for; it is not waited for any more then."""
        if request.number != self._pending or result.number != self._pending:
            return False
        self._pending = None
        return True

    def answer(self, result: SearchResult, running: PlanDraft, window: Window, at: float) -> list[Turn]:
        """Take the answer of a search under the plan that runs."""
        if not self._ripe(window) and (result.choice is None or result.choice.expected_gain < BOLD):
            self._nothing_bold = window.first
            return []
        if result.choice is None:
            return self._nothing(result, running, at)
        try:
            draft = self._drafting.exactly(result.choice.global_batch, result.choice.accumulation, at)
        except CannotPlan:
            self._cooldown.wait(at)
            return []
        self._trials.start(running, draft, result.choice, window, at)
        self._trying = True
        self.convergence.leave()
        grounds = Grounds(expectation=result.choice.expected_gain, candidates=result.candidates)
        return [Turn("trial-started", words.trial_started(running, result.choice), running, draft, grounds)]

    def _ripe(self, window: Window) -> bool:
        """Return whether a window is a reference for any trial, however small its gain."""
        times = np.array([s.step_s for s in window.ripe()])
        return times.size >= steps_needed(self._known.spec.planner.validation, times)

    def _nothing(self, result: SearchResult, running: PlanDraft, at: float) -> list[Turn]:
        used_up = self._trials.count >= self._known.spec.planner.search.max_trials
        if self._cooldown.blocked(at) and not used_up:
            self._cooldown.wait(at)
            return []
        reason = self._no_more_trials(running) if used_up else result.reason
        turns = [self._converged(reason, running, at, result.candidates), self._advised(result.advice, running)]
        return [turn for turn in turns if turn is not None]

    def _converged(
        self, reason: str, running: PlanDraft, at: float, candidates: tuple[CandidateSummary, ...] = ()
    ) -> Turn | None:
        self._speeds = self._known.speeds(at)
        if not self.convergence.reach(at, self._known.noise_scale()):
            return None
        return Turn("converged", reason, running, running, Grounds(candidates=candidates))

    def _advised(self, found: Advice | None, running: PlanDraft) -> Turn | None:
        """Tell who does not pay for themselves; the plan stays, for workers are the cluster's to send away."""
        before, self.advice = self.advice, found
        if found is None or (before is not None and before.counts == found.counts):
            return None
        reason = words.advised(found, self._known.workers)
        return Turn("advised", reason, running, running, Grounds(expectation=found.best.saving))

    @property
    def _alone(self) -> bool:
        return len(self._known.workers) == 1

    def _no_more_trials(self, running: PlanDraft) -> str:
        return f"All {self._trials.count} trials are used; {words.plan(*key(running))} stays."
