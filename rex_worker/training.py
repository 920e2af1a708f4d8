"""The training loop's engine: from one agreed step to the next.

A script's loop asks for a batch, computes a loss, and updates. Between those calls this module decides which samples
the batch holds, has gradients and votes exchanged (``rex_worker.exchange``), and acts on what the group agreed at the
next boundary, which is where the loader is asked for the first batch of a step. A step is
either applied by the optimiser or void; a void one leaves parameters and data position untouched and is taken again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rex_worker.agreement import Decision
from rex_worker.averaging import Averager
from rex_worker.devices import Pacer
from rex_worker.errors import GroupLost, UsageError, first_line
from rex_worker.exchange import Exchange
from rex_worker.group import Group
from rex_worker.headroom import Headroom
from rex_worker.keeping import Keeper
from rex_worker.link import Link
from rex_worker.loader import Source
from rex_worker.participation import Participation, Term
from rex_worker.protocol import Mark
from rex_worker.rates import Rates, schedule_steps
from rex_worker.replica import Replica
from rex_worker.sampler import Outlook
from rex_worker.scaler import ElasticScaler
from rex_worker.step import Step
from rex_worker.timing import Clock, StepTimes

_FAREWELL_S = 5.0


class Training:
    """Runs steps on one replica within the worker's groups."""

    def __init__(
        self,
        participation: Participation,
        link: Link,
        keeper: Keeper,
        replica: Replica,
        averager: Averager,
        source: Source,
        clock: Clock,
        device: torch.device,
        pacer: Pacer | None,
        headroom: Headroom,
        rates: Rates,
        scaler: ElasticScaler | None = None,
    ) -> None:
        self._participation = participation
        self._link = link
        self._keeper = keeper
        self._replica = replica
        self._averager = averager
        self._source = source
        self._clock = clock
        self._pacer = pacer
        self._headroom = headroom
        self._rates = rates
        self._scaler = scaler
        self._step: Step | None = None
        self._latest: Step | None = None
        """The newest step, also when the script's loop was left."""
        self._decision = Decision()
        self._exchange = Exchange(participation, link, replica, averager, headroom, scaler, device, pacer)
        self._last_end: float | None = None
        self._last_plan: tuple[int, int] = (0, 0)
        self.loop_epoch: int | None = None
        """The epoch that the script's loop is in; None outside."""
        self.loss = math.nan
        """Mean loss over the last applied step's global batch."""
        self.rate_factor = 1.0
        """What the base rate was multiplied with at the last update."""

    # --- between steps ----------------------------------------------------------------------------------------------

    def batches(self) -> Iterator[Any]:
        """Yield this worker's micro-batches until the epoch of the script's loop ends."""
        epoch = self.loop_epoch
        if epoch is None:
            raise UsageError("iterate session.loader inside `for epoch in session.epochs(...)`")
        try:
            while (step := self._next_step(epoch)) is not None:
                self._step = self._latest = step
                while step.handed_out < len(step.passes) and step.fate == "open":
                    begun = time.perf_counter()
                    batch = self._source.fetch(step.handed_out)
                    step.times.data_s += time.perf_counter() - begun
                    self._replica.statistics.pass_begins(len(step.passes[step.handed_out]))
                    step.handed_out += 1
                    step.times.pass_begins()
                    yield batch
                    _check_used(step)
        finally:
            self._step = None

    def _next_step(self, epoch: int) -> Step | None:
        """Settle what was agreed, and lay out the next step; None when ``epoch`` is over.

        After an epoch's last step nothing is settled yet: first the script does what it does between epochs (a
        scheduler moves on, for one), so that a checkpoint or a newcomer gets the state with that in it.
        """
        while self._replica.progress.position.epoch == epoch:
            term = self.settle()
            progress = self._replica.progress
            if progress.finished or progress.position.epoch != epoch:
                return None
            try:
                if progress.position.offset == 0:
                    term.group.gate(f"epoch-{epoch}")
                return self._lay_out(term)
            except GroupLost as error:
                self._participation.lose(error, progress.step)
        return None

    def _lay_out(self, term: Term) -> Step:
        progress, statistics = self._replica.progress, self._replica.statistics
        outlook = Outlook(
            progress.position,
            tuple(term.local_batches()),
            term.group.rank,
            self._headroom.passes(term.plan),
            self._averager.common_ceiling(term.group, self._headroom.pass_limit(term.plan)),
            statistics.needs_pairs,
            self._averager.together,
        )
        begun = time.perf_counter()
        layout = self._source.lay_out(outlook)
        waited_s = time.perf_counter() - begun
        self._participation.acknowledge(term.plan, progress.step + 1)
        if self._participation.entered:
            self._exchange.ended_at = None
        self._averager.reset()
        self._headroom.try_out()
        self._headroom.begin()
        statistics.begin()
        times, marks = StepTimes(self._clock, self._exchange.ended_at), self._marks(term)
        times.data_s = waited_s
        return Step(layout.passes, layout.share, layout.total, layout.ends_epoch, layout.mark, times, marks)

    def _marks(self, term: Term) -> list[Mark]:
        marks: list[Mark] = []
        if self._participation.entered:
            marks.append("first")
        key = (term.plan.generation, term.plan.version)
        if key != self._last_plan:
            marks.append("after-change")
        if self._keeper.just_saved():
            marks.append("checkpoint")
        if self._replica.progress.position.offset == 0:
            marks.append("evaluation")
        self._participation.entered, self._last_plan = False, key
        return marks

    def settle(self) -> Term:
        """At a boundary: do what the group agreed on; returns the group and plan to go on with."""
        decision, self._decision = self._decision, Decision()
        participation, replica, keeper = self._participation, self._replica, self._keeper
        term = participation.term
        if term is not None:
            keeper.keep_if_due(replica, term.group)
            if decision.stop:
                stop = self._link.directives.stop
                if stop is None or stop.checkpoint:
                    keeper.keep_now(replica, term.group)
                participation.depart("stopped", replica)
            if decision.disband:
                keeper.keep_now(replica, term.group)
                participation.depart_together(replica)
            if decision.finish:
                replica.progress = replace(replica.progress, finished=True)
            if decision.generation is not None:
                participation.change(decision.generation, replica, self._load)
            elif decision.plan_version is not None:
                participation.adopt_plan(decision.plan_version)
            participation.leave_if_overdue(replica)
        term = participation.enter_any(replica, self._load)
        self._link.standing.step = replica.step
        return term

    def _load(self, group: Group) -> bool:
        return self._keeper.load(self._replica, group)

    def finish(self) -> None:
        """End together: when all members have all steps and rank 0 has committed the final checkpoint."""
        while True:
            group = self.settle().group
            try:
                group.gate("finish")
                self._keeper.keep_final(self._replica, group)
                if group.rank == 0:
                    group.announce("final")
                group.await_key("final")
                break
            except GroupLost as error:
                self._participation.lose(error, self._replica.step)
        with suppress(GroupLost):  # all is kept: whoever is gone needs nothing of this worker any more
            group.farewell(_FAREWELL_S)
        self._participation.close()

    @property
    def batch_weight(self) -> float:
        """Weight of the micro-batch that the script has in hand."""
        step = self._step
        return step.pass_weight(step.handed_out - 1) if step is not None and step.handed_out else 0.0

    @property
    def gradients_ready(self) -> bool:
        """Whether the step at hand has its averaged gradients and awaits its update."""
        return self._step is not None and self._step.fate == "reduced"

    # --- the forward pass (Passes) ----------------------------------------------------------------------------------

    def in_hand(self) -> int:
        """Samples of the batch whose forward and backward pass are under way; 0 outside of a step."""
        step = self._step
        pending = step is not None and step.fate == "open" and step.backwards < step.handed_out
        return len(step.passes[step.handed_out - 1]) if step is not None and pending else 0

    def admit(self) -> None:
        """Raise an emulated device's out-of-memory error when the batch in hand would not fit."""
        if self._pacer is not None:
            self._pacer.check_memory(self.in_hand())

    def is_unfit(self) -> bool:
        """Whether memory did not suffice for the step at hand."""
        return self._step is not None and self._step.no_memory is not None

    def ran_out(self, message: str) -> None:
        """Memory did not suffice for the batch in hand: from now on the same share is run in smaller passes."""
        if self._step is not None:
            term = self._participation.present
            self._step.no_memory = message
            self._headroom.ran_out(term.plan, self.in_hand(), message)
            if self._averager.together:  # what stands in for the pass must not talk to the others
                term.group.break_up(GroupLost("this worker could not do its part of a sharded step"))

    def was_beaten(self, error: BaseException) -> bool:
        """Whether the script could not go on after ``error`` for lack of memory; then the operator has been told."""
        step, term = self._latest, self._participation.term
        if step is None or term is None or step.fate != "open" or not step.handed_out:
            return False
        if step.no_memory is None and self._headroom.is_full(error):
            self._headroom.ran_out(term.plan, len(step.passes[step.handed_out - 1]), first_line(error))
            return True
        return step.no_memory is not None

    # --- one micro-batch --------------------------------------------------------------------------------------------

    def backward(self, loss: Tensor, units: float | None = None) -> None:
        """Run the backward pass of one micro-batch, weighted; with the last one of a step, the group's exchange.

        ``units``: what the loss is the mean over, if not over samples.
        """
        step, term = self._checked_step(loss, units), self._participation.present
        raw = loss.detach() if self._scaler is None else self._scaler.raw(loss)
        step.backwards += 1
        final = step.backwards == len(step.passes)
        try:
            if step.no_memory is None:
                self._exchange.compute(loss, raw, step.loss_weight(step.backwards - 1, units), step, term, final=final)
            step.times.pass_ends()
            if final or step.no_memory is not None:
                self._decision = self._exchange.meet(term, step)
        except GroupLost as error:
            self._exchange.void(step)
            self._participation.lose(error, self._replica.step)

    def _checked_step(self, loss: Tensor, units: float | None) -> Step:
        step = self._step
        if step is None:
            raise UsageError("session.backward(loss) belongs inside the loop over session.loader")
        if step.fate != "open" or step.backwards >= step.handed_out:
            raise UsageError("session.backward was called twice for one batch; call it once, on the sum of the losses")
        if loss.numel() != 1 or not (loss.requires_grad or units == 0):
            raise UsageError(
                "session.backward needs the mean loss of the batch, one number with a gradient; got shape"
                f" {tuple(loss.shape)}, requires_grad={loss.requires_grad}"
            )
        if step.backwards and (step.units is None) != (units is None):
            raise UsageError("give session.backward a weight for every batch or for none")
        if any(weight for weight, _ in step.losses) and not self._averager.has_gradients():
            raise UsageError(
                "the gradients of the step's earlier batches are gone; clear them with the prepared optimizer's"
                " zero_grad() only, which knows when a step begins"
            )
        return step

    # --- what the optimiser and the scheduler ask (StepGate) --------------------------------------------------------

    @property
    def learning_rate_factor(self) -> float:
        """What the base learning rate is multiplied with at the update of the step at hand."""
        step = self._step.total if self._step is not None else 0
        return self._rates.factor(self._participation.present.plan, self._replica.progress.samples + step)

    def may_clear(self) -> bool:
        """Whether gradients may be cleared: none of an unfinished step are there."""
        step = self._step
        return step is None or step.backwards == 0 or step.fate in ("applied", "void")

    def take_update(self) -> bool:
        """Whether the optimiser updates now."""
        step = self._step
        if step is None:
            raise UsageError("optimizer.step() belongs inside the loop over session.loader")
        if step.backwards < step.handed_out:
            raise UsageError("optimizer.step() before session.backward(loss): replace loss.backward() by it")
        return step.fate == "reduced"

    def updated(self) -> None:
        """Count the step as applied and report it."""
        step, plan, before = self._step, self._participation.present.plan, self._replica.progress
        if step is None:
            return
        step.fate = "applied"
        after = replace(
            before,
            position=before.position.advance(step.total, ends_epoch=step.ends_epoch),
            step=before.step + 1,
            samples=before.samples + step.total,
        )
        self._replica.progress = after
        self._link.standing.step = after.step
        self.loss = self._decision.loss * step.factor if step.factor else math.nan
        now = time.perf_counter()
        elapsed_s = None if self._last_end is None else now - self._last_end
        self._last_end = now
        self.rate_factor = self._rates.factor(plan, after.samples)
        self._rates.applied(plan)
        step.schedule_steps = schedule_steps(plan, before.position, step.total, ends_epoch=step.ends_epoch)
        self._headroom.applied(max(len(part) for part in step.passes))
        report = step.report(before, after, plan.version, elapsed_s, self._headroom.peak())
        self._link.report(plan.generation, report)

    def may_schedule(self) -> bool:
        """Whether a scheduler moves on: after an applied update, or between epochs that this worker really lived."""
        step = self._step
        return not self._replica.overtaken if step is None else step.fate == "applied"

    def schedule_steps(self) -> int:
        """By how many steps a scheduler moves on, if it goes by samples; by one between epochs."""
        return 1 if self._step is None else self._step.schedule_steps

    # --- beside the steps -------------------------------------------------------------------------------------------

    def clip_gradients(self, max_norm: float) -> None:
        """Clip the averaged gradients, once they are there."""
        if self._step is not None and self._step.fate == "reduced":
            if self._scaler is not None:
                self._scaler.unscale_once()
            self._averager.clip(max_norm)


def _check_used(step: Step) -> None:
    if step.backwards < step.handed_out:
        raise UsageError("a batch was not used: call session.backward(loss) for every batch that the loader yields")
    if step.fate == "reduced":
        raise UsageError("optimizer.step() was not called after session.backward(loss); call it for every batch")
