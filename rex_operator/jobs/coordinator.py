"""The brain of one job: which workers form the group, under which plan, and when the job is over.

Workers come, go, freeze and return, the operator restarts, and a planner wants to try things; all the while exactly one
membership and one plan may be the newest. The coordinator takes every event as a call, keeps what is known in a roster,
and answers with actions. It does no I/O and reads no clock, so each rule can be tested by a row of events.

Three things only ever grow, over restarts too: the generation, the plan version and the committed checkpoint, unless
that is found damaged. A saved state is always asked for before the messages that rest on it are sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import numpy as np

from rex_operator.api import RexJobSpec
from rex_operator.jobs.actions import Action, Ended, RunSearch, Save, Send
from rex_operator.jobs.group import COLLECTIVE_TIMEOUT_S
from rex_operator.jobs.knowledge import Knowledge
from rex_operator.jobs.life import Key, Life, Target
from rex_operator.jobs.membership import next_members
from rex_operator.jobs.roster import RECONNECT_S, find_lost
from rex_operator.jobs.saved import SavedState
from rex_operator.jobs.view import JobView, Phase
from rex_operator.jobs.viewing import make_view
from rex_operator.planning import CannotPlan, DecisionRecord, PlanDraft, Planner, SearchRequest, SearchResult
from rex_worker.protocol import Checkpointed, CheckpointFailed, Down, Drain, Hello, OutOfMemory, Ready, Steps, Stop, Up

RESTART_GRACE_S = 30.0
"""After a restart of the operator no silence counts for this long: the workers must find the new one first."""
MAX_REFORM_DELAY_S = 30.0
TAKE_UP_S = 120.0
"""A plan that the group has not taken up within this time ..."""
TAKE_UP_STEPS = 20
"""... and so many steps is withdrawn."""


class Coordinator:
    """One job's generations and plans. Every event returns the actions that follow from it, in order.

    All ``now`` are seconds on one monotonic clock. After ``Ended`` no event changes anything any more.
    """

    def __init__(
        self, name: str, spec: RexJobSpec, rng: np.random.Generator, now: float, saved: SavedState | None = None
    ) -> None:
        self.name, self.spec = name, spec
        self.known = Knowledge(spec, saved or SavedState(), now)
        self.roster, self.progress, self.group = self.known.roster, self.known.progress, self.known.group
        self.rng = rng
        self.planner = Planner(spec, rng, saved.planner if saved is not None else None)
        self.planner.length_is(self.progress.total_samples)
        self.ended: Ended | None = None
        self.stopping: Stop | None = None
        self._grace_until = now + RESTART_GRACE_S if saved is not None else now
        self._formed_at, self._formed_in_vain = now, 0
        self._issued = (now, self.progress.step)
        """When the newest plan was issued, and at which step."""
        self._last_decision: DecisionRecord | None = None
        self._actions: list[Action] = []
        if self.group.members:
            self.planner.set_workers([life.info() for life in self.group.members], now)

    # --- events ----------------------------------------------------------------------------------------------------

    def set_target(self, workers: Mapping[str, Target], now: float) -> list[Action]:
        """Say which workers exist or are being started; members that are not among them are drained."""
        if self.ended is None:
            self.roster.set_target(workers)
            self.roster.forget(self.group.members)
        return self._settle(now)

    def set_spec(self, spec: RexJobSpec, now: float) -> list[Action]:
        """Take over an edited wish while the job runs.

        Where batch, learning rate or planner changed, a new planner goes on from what the old one has learned, within
        the new bounds; a trial that runs starts over. Bounds that the present group cannot meet wait for the next one:
        an edit never ends a training.
        """
        before, self.spec, self.known.spec = self.spec, spec, spec
        if self.ended is None and _planned_by(spec) != _planned_by(before):
            self.planner = Planner(spec, self.rng, self.planner.state())
            self.planner.length_is(self.progress.total_samples)
            with suppress(CannotPlan):
                if self.group.members:
                    self._issue(self.planner.set_workers([life.info() for life in self.group.members], now), now)
        else:
            self.planner.edited(spec)
        return self._settle(now)

    def connected(self, worker_id: str, incarnation: str, hello: Hello, now: float) -> list[Action]:
        """A worker opened a session."""
        life = self.roster.life(worker_id, incarnation)
        if life.gone:
            self.roster.counters["dead-life"] += 1
            return self._settle(now)
        life.greet(hello, now)
        self.group.learn(hello)
        if self.ended is not None or self.stopping is not None:
            self._send(life, self.stopping or Stop(reason="the job has ended", checkpoint=False))
        else:
            life.drained = False
            for message in self.group.missed(life, hello):
                self._send(life, message)
        return self._settle(now)

    def disconnected(self, worker_id: str, incarnation: str, now: float) -> list[Action]:
        """A worker's session closed; it may come back."""
        life = self.roster.lives.get((worker_id, incarnation))
        if life is not None and life.connected:
            life.connected, life.changed_at = False, now
        return self._settle(now)

    def gone(self, worker_id: str, incarnation: str, reason: str, now: float) -> list[Action]:
        """A worker's process or pod is known to be dead. Deliver what its channel still holds before."""
        return self.gone_together([(worker_id, incarnation)], reason, now)

    def gone_together(self, lives: Iterable[Key], reason: str, now: float) -> list[Action]:
        """Several lives ended at once, with their pod: the others form one new generation."""
        for key in lives:
            life = self.roster.lives.get(key)
            if life is not None:
                life.end(reason)
        return self._settle(now)

    def message(self, worker_id: str, incarnation: str, message: Up, now: float) -> list[Action]:
        """A worker said something; repeats and late messages change nothing."""
        life = self.roster.heard(worker_id, incarnation, now)
        if life is not None and self.ended is None:
            self._take_in(life, message, now)
        return self._settle(now)

    def search_finished(self, request: SearchRequest, result: SearchResult | None, now: float) -> list[Action]:
        """A search that was asked for has its result; None when it failed, so that the planner waits no longer."""
        if self.phase in ("Running", "Recovering"):
            answer = result or SearchResult(request.number, None, (), "The search failed; what runs stays.")
            self._issue(self.planner.complete(request, answer, now), now)
        return self._settle(now)

    def tick(self, now: float) -> list[Action]:
        """Let time pass; to be called about every half second."""
        actions = self._settle(now)
        if self._overdue(now):
            self._issue(self.planner.withdraw("not all workers took it up", now), now)
        elif self._steady():
            wish = self.planner.poll(now)
            if isinstance(wish, SearchRequest):
                self._actions.append(RunSearch(wish))
            else:
                self._issue(wish, now)
        return actions + self._settle(now)

    def stop(self, reason: str, now: float, *, checkpoint: bool = True) -> list[Action]:
        """End the training for now (suspend, interrupt): workers save and leave; a later coordinator may go on."""
        if self.ended is None and self.stopping is None:
            self.stopping = Stop(reason=reason[:2000], checkpoint=checkpoint)
            self._actions.append(Save())
            self._send_all(self.stopping)
        return self._settle(now)

    def fail(self, reason: str, message: str, now: float) -> list[Action]:
        """End the job as failed for a cause that only the shell knows (restarts used up, deadline passed)."""
        if self.ended is None:
            self._end(Ended(False, reason, message))
        return self._settle(now)

    # --- what can be asked -----------------------------------------------------------------------------------------

    def saved(self) -> SavedState:
        """What a later coordinator needs to go on from here."""
        return self.known.saved(self.planner.state())

    def view(self) -> JobView:
        """The job as it stands."""
        return make_view(self)

    @property
    def phase(self) -> Phase:
        """Where the job is in its life."""
        members = self.group.members
        if self.ended is not None:
            return "Succeeded" if self.ended.success else "Failed"
        if self.stopping is not None:
            return "Stopping" if any(life.alive for life in members) else "Stopped"
        if self.known.finishing:
            return "Finishing"
        if not self.group.generation:
            return "Pending"
        return "Running" if members and all(life.alive for life in members) else "Recovering"

    # --- news from the workers -------------------------------------------------------------------------------------

    def _take_in(self, life: Life, message: Up, now: float) -> None:
        match message:
            case Steps():
                for report in self.known.steps(life, message, now):
                    self.planner.observe(life.worker_id, life.incarnation, message.generation, report, now)
                    self._formed_in_vain = 0
            case Checkpointed():
                self.known.checkpointed(message)
                self._actions.append(Save())
            case CheckpointFailed(resumed=int()):
                self.known.take_in(life, message, now)
                self._actions.append(Save())
            case OutOfMemory():
                self._out_of_memory(life, message, now)
            case Ready():
                self.planner.script_is(adaptive=message.adaptive, equal_passes=message.equal_passes)
                self.known.take_in(life, message, now)
                self.planner.length_is(self.progress.total_samples)
            case _:
                self.known.take_in(life, message, now)

    def _out_of_memory(self, life: Life, message: OutOfMemory, now: float) -> None:
        version, samples = life.out_of_memory
        again = message.plan_version == version and message.local_batch >= samples
        if life not in self.group.members or message.plan_version < version or again:
            return
        life.out_of_memory = message.plan_version, message.local_batch
        draft = self.planner.out_of_memory(life.worker_id, message.local_batch, now)
        if draft is None and message.plan_version == self.group.version and life in self.group.unacked():
            draft = self.planner.withdraw(f"{life.worker_id} cannot run it", now)
        self._issue(draft, now)
        if self.planner.impossible is not None:
            self._end(Ended(False, "OutOfMemory", self.planner.impossible))

    # --- decisions -------------------------------------------------------------------------------------------------

    def _settle(self, now: float) -> list[Action]:
        """Draw all conclusions from what is known, and hand out the actions since the last call."""
        if self.ended is None:
            if now >= self._grace_until:
                find_lost(self.group.members, self.group.generation, self.progress.moved_at, now, COLLECTIVE_TIMEOUT_S)
            others_are_there = any(life.connected and life.alive for life in self.group.members)
            for life in self.roster.lives.values():
                life.miss(others_are_there, now)
            if self.known.finished:
                self._end(Ended(True, "Finished", "all workers ran the script to its end"))
            elif self.stopping is None and self.roster.targets_known and not self.known.finishing:
                self._regroup(now)
                self._drain_the_unwanted()
                self._note_running(now)
            self._note_decisions()
        actions, self._actions = self._actions, []
        return actions

    def _regroup(self, now: float) -> None:
        everyone_back = all(life.connected for life in self.roster.lives.values() if life.wanted)
        if self.group.strange and not everyone_back and now < self._grace_until:
            return
        broken = self.group.strange or self._fell_apart(now)
        if not broken and self._may_have_lost_somebody(now):
            return
        members = next_members(
            self.group.members,
            self.roster.newcomers(self.group.members, now),
            self.spec,
            everyone_ready=self.roster.everyone_ready(),
            broken=broken,
            now=now,
        )
        if members is not None:
            self._form(members, now)

    def _may_have_lost_somebody(self, now: float) -> bool:
        """Whether a member tells of a loss, or has just hung up, and who is left is not known yet: no time for plans.

        A worker that is told to go when a peer dies would else be sent away in favour of the dead.
        """
        members, generation = self.group.members, self.group.generation
        return all(life.alive for life in members) and any(
            life.group_lost >= generation or (not life.connected and now - life.changed_at < RECONNECT_S)
            for life in members
        )

    def _fell_apart(self, now: float) -> bool:
        """Whether all members tell that the group is lost, though all live; after failures in a row, not at once."""
        alive = [life for life in self.group.members if life.alive]
        if not alive or any(life.group_lost < self.group.generation for life in alive):
            return False
        again = min(MAX_REFORM_DELAY_S, 0.5 * 2.0 ** min(self._formed_in_vain - 1, 10)) if self._formed_in_vain else 0.0
        return now - self._formed_at >= again

    def _form(self, members: list[Life], now: float) -> None:
        try:
            draft = self.planner.set_workers([life.info() for life in members], now)
        except CannotPlan as error:
            self._end(Ended(False, "CannotPlan", str(error)))
            return
        same = [life.key for life in members] == [life.key for life in self.group.members]
        self._formed_in_vain = self._formed_in_vain + 1 if same else 0
        self._formed_at = now
        message = self.group.form(members, draft, self.known.checkpoint_step)
        self._issued = (now, self.progress.step)
        self._actions.append(Save())
        for life in members:
            life.joined = True
            self._send(life, message)
        for life in self.roster.lives.values():
            if life.joined and life.departing and life.alive and life not in members:
                self._send(life, message)
        self.roster.forget(members)

    def _issue(self, draft: PlanDraft | None, now: float) -> None:
        if draft is None:
            return
        plan = self.group.replan(draft)
        self._issued = (now, self.progress.step)
        self._actions.append(Save())
        for life in self.group.members:
            self._send(life, plan)

    def _drain_the_unwanted(self) -> None:
        for life in self.roster.lives.values():
            unwanted = life.was_wanted and not life.wanted and not life.drained
            if unwanted and life.connected and life.alive and life not in self.group.members:
                life.drained = True
                self._send(life, Drain(reason="no longer part of the job"))

    def _note_running(self, now: float) -> None:
        group = self.group
        if group.plan is None or group.draft is None or group.running_version == group.version or group.unacked():
            return
        group.running_version = group.plan.version
        step = max(life.plan_step for life in group.members)
        self.planner.plan_running(group.plan.version, group.generation, group.draft, step, now)

    def _note_decisions(self) -> None:
        newest = self.planner.decisions[-1] if self.planner.decisions else None
        if newest is not self._last_decision:
            self._last_decision = newest
            self._actions.append(Save())

    def _steady(self) -> bool:
        """Whether the whole group runs the newest plan, so that the planner may ask for another."""
        return (
            self.phase == "Running"
            and self.group.plan is not None
            and self.group.running_version == self.group.plan.version
        )

    def _overdue(self, now: float) -> bool:
        """Whether the group trains on under an older plan long after all of it must have heard of the newest."""
        group, progress = self.group, self.progress
        if self.phase != "Running" or progress.generation != group.generation or not group.unacked():
            return False
        issued_at, issued_step = self._issued
        heard = all(life.connected for life in group.members)
        return heard and now - issued_at > TAKE_UP_S and progress.step - issued_step >= TAKE_UP_STEPS

    def _end(self, ended: Ended) -> None:
        self.ended = ended
        self._actions.append(Save())
        if not ended.success:
            self._send_all(Stop(reason=ended.message[:2000], checkpoint=False))
        self._actions.append(ended)

    def _send_all(self, message: Down) -> None:
        for life in self.roster.lives.values():
            if life.alive:
                self._send(life, message)

    def _send(self, life: Life, message: Down) -> None:
        if life.connected:
            self._actions.append(Send(life.worker_id, life.incarnation, message))


def _planned_by(spec: RexJobSpec) -> tuple[object, ...]:
    """What of a wish the planner goes by; memory ceilings and numbers of workers reach it with each group.

    What pays, though, hangs on what the pools cost and on how few workers there may be.
    """
    priced = (spec.pools, spec.workers.min) if spec.planner.objective in ("cost", "energy") else ()
    return spec.batch, spec.learning_rate, spec.planner, priced
