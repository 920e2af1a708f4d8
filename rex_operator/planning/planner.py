"""The state machine of one job's planning: observe, share out anew, try, judge, keep or roll back.

A plan changes for four reasons only, each with its evidence on record. The team changed or a memory ceiling was found:
the same batch is shared out at once. The workers' speeds are not what the shares assume (a straggler, a curve better
known): shares move at once, which changes no mathematics and needs no trial. A batch with better goodput seems likely:
it goes on trial and stays only if the test says so. The noise scale moved beyond doubt: the learning rate follows.

Pure: no I/O, no clock (``now`` is monotonic seconds), and the slow part leaves as a `SearchRequest`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

import numpy as np

from rex_operator.api.spec import RexJobSpec
from rex_operator.planning import words
from rex_operator.planning.cooldown import Cooldown
from rex_operator.planning.drafting import Drafting
from rex_operator.planning.journal import Grounds, Journal
from rex_operator.planning.knowledge import Knowledge
from rex_operator.planning.policies import POLICIES, Policy, Scene
from rex_operator.planning.search import SearchRequest, SearchResult
from rex_operator.planning.seeking import Seeking
from rex_operator.planning.state import PlannerState
from rex_operator.planning.straggler import SpeedChange
from rex_operator.planning.trials import Trials, Turn, key
from rex_operator.planning.types import (
    KEPT_DECISIONS,
    CannotPlan,
    DecisionKind,
    DecisionRecord,
    PlanDraft,
    PlannerView,
    WorkerInfo,
)
from rex_operator.planning.view import look_at
from rex_operator.planning.windows import Window
from rex_worker.protocol import StepReport


class Planner:
    """Plans the batch and the shares of one job.

    A draft that a method returns is to be issued as the next plan; `plan_running` says when all workers run it. Until
    then nothing else is decided.
    """

    def __init__(
        self,
        spec: RexJobSpec,
        rng: np.random.Generator,
        saved: PlannerState | None = None,
        policy: Policy | None = None,
    ) -> None:
        """Plan by the policy that the spec names, or by ``policy``: one of your own, new and for this job alone."""
        self.spec = spec
        self.rng = rng
        self.impossible: str | None = None
        """Why no plan can work, once that is known (not even one sample fits a worker): the job cannot go on so."""
        self._policy: Policy = policy or POLICIES[spec.planner.policy]()
        self._known = Knowledge(spec, saved, own_passes="passes" in self._policy.about.changes)
        self._cooldown = Cooldown(spec.planner.search.cooldown_seconds, saved.pauses if saved else None)
        self._drafting = Drafting(self._known, self._policy, self._cooldown)
        self._journal = Journal(saved.decisions if saved else ())
        self._incumbent = (saved.global_batch, saved.accumulation) if saved else (spec.batch.initial, 1)
        self._issued: PlanDraft | None = None
        self._running: PlanDraft | None = None
        self._stray = False
        tried = (saved.trials, saved.budget) if saved else (0, None)
        self._trials = Trials(self._known, self._policy, self._cooldown, self._drafting, *tried)
        self._seeking = Seeking(self._known, self._policy, self._cooldown, self._drafting, self._trials, saved)
        self._elapsed = saved.elapsed_s if saved else 0.0
        self._now: float | None = None

    @property
    def decisions(self) -> deque[DecisionRecord]:
        """What was decided and why, the newest last."""
        return self._journal.decisions

    @property
    def converged(self) -> bool:
        """Whether no batch is likely enough to be better, for now."""
        return self._seeking.convergence.reached

    def script_is(self, *, adaptive: bool, equal_passes: bool = False) -> None:
        """Learn of the script; the next draft goes by it.

        ``adaptive``: its optimiser divides by the gradient's own size. ``equal_passes``: all workers must run equally
        many passes.
        """
        self._known.adaptive, self._known.equal_passes = adaptive, equal_passes

    def length_is(self, samples: int) -> None:
        """Learn how many samples the whole run trains on; 0: not known. Near its end no trial pays."""
        self._known.total_samples = samples

    def edited(self, spec: RexJobSpec) -> None:
        """Take over an edit that no plan hangs on, as of a price where nobody plans for it."""
        self.spec = self._known.spec = spec

    # --- the team -----------------------------------------------------------------------------------------------------

    def set_workers(self, workers: Sequence[WorkerInfo], now: float) -> PlanDraft:
        """Take over a new membership and return the plan that it starts under.

        The batch stays; a trial that runs is dropped and starts over. Raises ``CannotPlan`` when the batch's bounds or
        the memory ceilings leave no plan for this team.
        """
        at = self._clock(now)
        self._trials.team_changed()
        self._known.team(workers, at, now)
        self._running = None
        self._seeking.team_changed()
        self._cooldown.clear()
        self._policy.restarted()
        before, draft = self._issued, self._drafting.fitting(*self._incumbent, at)
        return self._issue("membership", words.membership(workers, draft), draft, before)

    def plan_running(self, version: int, generation: int, draft: PlanDraft, step: int, now: float) -> None:
        """All workers run ``draft`` since ``step``: its window begins.

        What runs is what counts: a planner of another life may have issued it, even as a trial that nobody judges now.
        """
        at = self._clock(now)
        self._running = self._issued = draft
        self._stray = self._trials.running is None and not self._is_incumbent(draft, at)
        self._known.running(version, generation, draft, step, now)

    def _is_incumbent(self, draft: PlanDraft, at: float) -> bool:
        """Return whether a plan is the incumbent; in how many passes is no matter where workers take their own."""
        incumbent = self._drafting.fitting(*self._incumbent, at)
        return draft.global_batch == incumbent.global_batch if self._known.own_passes else key(draft) == key(incumbent)

    def observe(self, worker_id: str, incarnation: str, generation: int, report: StepReport, now: float) -> None:
        """Take in one step of one worker; repeats, other lives and other plans change nothing but a counter."""
        self._known.observe(worker_id, incarnation, generation, report, now)

    def out_of_memory(self, worker_id: str, local_batch: int, now: float) -> PlanDraft | None:
        """Learn that a pass of ``local_batch`` samples does not fit on the worker; return the plan to go on with.

        None: the plan that was issued last does not ask for that much, or no plan can help (see ``impossible``).
        The batch is kept: more passes of smaller micro-batches. A trial that asked too much is rolled back.
        """
        at, worker, plan = self._clock(now), self._known.workers.get(worker_id), self._issued
        if worker is None or plan is None:
            return None
        self._known.devices.out_of_memory(worker, local_batch)
        if self._known.fits(plan):
            return None
        reason = words.out_of_memory(worker, local_batch)
        lower = self._trials.stepped_down(reason)
        if lower is not None and lower.plan is not None:
            return self._issue(lower.kind, lower.reason, lower.plan, lower.before)
        trial = self._trials.failed(at)
        try:
            draft = self._drafting.fitting(*self._incumbent, at)
        except CannotPlan as error:
            self.impossible = f"{reason}; {error}"
            self._note("ceiling", f"{self.impossible}.", plan, None)
            return None
        self._incumbent = key(draft)
        after = words.plan(draft.global_batch, draft.accumulation)
        return self._issue("vetoed" if trial else "ceiling", f"{reason}: {after} instead.", draft, plan)

    def withdraw(self, why: str, now: float) -> PlanDraft:
        """The plan issued last is not taken up by all workers, ``why`` (a clause): return the plan to go on with."""
        at, plan = self._clock(now), self._issued
        reason = f"{words.plan(*key(plan)) if plan else 'The plan'} is withdrawn: {why}."
        trial = self._trials.running
        if trial is not None:
            turn = self._trials.roll_back(trial, "inconclusive", reason, at)
            return self._issue(
                turn.kind, reason, self._drafting.fitting(*self._incumbent, at), turn.before, **turn.grounds
            )
        draft = self._running or self._drafting.fitting(*self._incumbent, at)
        return self._issue("inconclusive", reason, draft, plan)

    # --- decisions ----------------------------------------------------------------------------------------------------

    def poll(self, now: float) -> PlanDraft | SearchRequest | None:
        """Decide what is ripe; cheap. A ``SearchRequest`` is to be run elsewhere and answered by `complete`."""
        at, known, running = self._clock(now), self._known, self._running
        window = known.ingest.window
        if window is None or running is None or self._issued != running or known.ingest.stale(now):
            return None
        eager = self._trials.running is not None and not self._trials.running.back
        change = known.gauge.read(window, known.workers, running, at, eager=eager)
        spoiled = self._trials.spoiled(window, at)
        if spoiled is not None:
            return self._turn(spoiled, at)
        if self._stray:
            self._stray = False
            reason = f"A trial of {words.plan(*key(running))} was cut off, so it tells nothing: it may start over."
            return self._issue("inconclusive", reason, self._drafting.fitting(*self._incumbent, at), running)
        trial = self._trials.running
        if not known.gauge.learned and change is None:
            return None
        if not known.gauge.learned and trial is None:
            return self._share_anew(running, window, change, at)
        if trial is not None:
            turn = self._trials.go_on(trial, window, change, self._scene(at))
            return None if turn is None else self._turn(turn, at)
        draft = self._share_anew(running, window, change, at) or self._adopt(running, at) or self._rescale(running)
        if draft is not None:
            return draft
        asked = self._seeking.ask(running, window, at)
        return self._turn(asked, at) if isinstance(asked, Turn) else asked

    def _share_anew(
        self, running: PlanDraft, window: Window, change: SpeedChange | None, at: float
    ) -> PlanDraft | None:
        found = self._policy.rebalance(self._scene(at, change))
        if found is None:
            return None
        reason = words.rebalanced(found, change, window.workers, self._known.workers)
        draft = self._drafting.reshared(running, found.shares, at)
        self._incumbent = key(draft)
        return self._issue("rebalanced", reason, draft, running, expectation=found.gain)

    def _adopt(self, running: PlanDraft, at: float) -> PlanDraft | None:
        found = self._policy.adopt(self._scene(at))
        if found is None or (found.global_batch, found.accumulation) == key(running):
            return None
        try:
            draft = self._drafting.fitting(found.global_batch, found.accumulation, at)
        except CannotPlan:
            return None
        if key(draft) == key(running):
            return None
        self._incumbent = key(draft)
        self._policy.restarted()
        return self._issue("adopted", found.why, draft, running, expectation=found.gain)

    def _rescale(self, running: PlanDraft) -> PlanDraft | None:
        draft = self._drafting.rescaled(running)
        if draft is None:
            return None
        reason = words.rescaled(running, draft, self._known.rate_noise)
        return self._issue("rescaled", reason, draft, running)

    def complete(self, request: SearchRequest, result: SearchResult, now: float) -> PlanDraft | None:
        """Take the answer of a search; an answer that came too late changes nothing."""
        at, window, running = self._clock(now), self._known.ingest.window, self._running
        if not self._seeking.expects(request, result):
            return None
        if window is None or running is None or self._issued != running or self._trials.running is not None:
            return None
        if len(window.ripe()) < self.spec.planner.validation.min_steps:
            return None  # a worker changed its speed meanwhile: what the search and the reference stood on is gone
        drafts = [self._turn(turn, at) for turn in self._seeking.answer(result, running, window, at)]
        return drafts[0] if drafts else None

    def _turn(self, turn: Turn, at: float) -> PlanDraft | None:
        """Write down a decision; return the plan to issue, None if it runs already."""
        draft = turn.plan or self._drafting.fitting(*self._incumbent, at)
        if turn.kind in ("accepted", "adopted"):
            self._incumbent = key(draft)
        if draft == self._running:
            self._note(turn.kind, turn.reason, turn.before, draft, **turn.grounds)
            return None
        return self._issue(turn.kind, turn.reason, draft, turn.before, **turn.grounds)

    # --- plans and records --------------------------------------------------------------------------------------------

    def _issue(
        self, kind: DecisionKind, reason: str, draft: PlanDraft, before: PlanDraft | None, **grounds: Unpack[Grounds]
    ) -> PlanDraft:
        self._note(kind, reason, before, draft, **grounds)
        self._seeking.plan_changed()
        self._issued = draft
        return draft

    def _note(
        self,
        kind: DecisionKind,
        reason: str,
        before: PlanDraft | None,
        after: PlanDraft | None,
        **grounds: Unpack[Grounds],
    ) -> None:
        self._journal.note(kind, reason, before, after, self._elapsed, self._known.latest, **grounds)

    def _scene(self, at: float, change: SpeedChange | None = None) -> Scene:
        return replace(
            self._drafting.scene(self._running, at), change=change, in_trial=self._trials.running is not None
        )

    def _clock(self, now: float) -> float:
        """Return the job time: seconds of planning over all lives of the operator."""
        if self._now is not None:
            self._elapsed += max(0.0, now - self._now)
        self._now = now if self._now is None else max(now, self._now)
        return self._elapsed

    def view(self) -> PlannerView:
        """Return the planner at a glance."""
        window, trial = self._known.ingest.window, self._trials.running
        shown = trial.view(len(window.ripe())) if trial and window else None
        view = look_at(
            self._known, self._issued, shown, self._trials.count, self._journal.last, self.converged, self._now or 0.0
        )
        advice = None if self._seeking.advice is None else words.advised(self._seeking.advice, self._known.workers)
        bill = self._known.bill(self._issued, view.goodput, self._elapsed)
        return replace(
            view,
            budget_spent=self._trials.budget.spent,
            next_level=self._trials.budget.level,
            advice=advice,
            price_per_hour=bill.price_per_hour,
            price_per_million=bill.price_per_million,
            watts=bill.watts,
            joules_per_sample=bill.joules_per_sample,
        )

    def state(self) -> PlannerState:
        """Return what has been learned, to be kept; a trial that runs is not in it."""
        known = self._known
        known.align(self._elapsed)  # what is kept of the devices says at which speeds
        return PlannerState(
            elapsed_s=self._elapsed,
            global_batch=self._incumbent[0],
            accumulation=self._incumbent[1],
            trials=self._trials.count - (self._trials.running is not None),
            searches=self._seeking.number,
            converged=self.converged,
            budget=self._trials.budget.state(),
            noise=known.noise.state(),
            rate_noise=known.rate_noise,
            adaptive=known.adaptive,
            equal_passes=known.equal_passes,
            devices=known.devices.state(),
            history=known.history.state(),
            exchanges=known.exchanges.state(),
            pauses=self._cooldown.state(),
            decisions=self._journal.newest(KEPT_DECISIONS),
        )
