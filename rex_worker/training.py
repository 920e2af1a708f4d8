"""The training loop's engine: from one agreed step to the next.

A script's loop asks for a batch, computes a loss, and updates. Between those calls this module decides which samples the
batch holds, weighs the loss, averages gradients while the backward pass runs, exchanges votes, and acts on what the group
agreed at the next boundary, which is where the loader is asked for the first batch of a step. A step is either applied
by the optimiser or void; a void one leaves parameters and data position untouched and is taken again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from rex_worker.agreement import Decision, Vote, Wish, decide
from rex_worker.averaging import GradientAverager
from rex_worker.devices.hardware import release_memory
from rex_worker.devices.pacing import Pacer
from rex_worker.errors import GroupLost, UsageError
from rex_worker.keeping import Keeper
from rex_worker.link import Link
from rex_worker.loader import Fetch
from rex_worker.participation import Participation
from rex_worker.protocol import Mark, OutOfMemory, StepReport
from rex_worker.replica import Replica
from rex_worker.sampler import EpochOrder, Indices, micro_batches
from rex_worker.timing import Clock, StepTimes

_DUMMY_SAMPLES = 2
"""A worker without a share in a step computes on this many samples, with weight 0 (one alone upsets batch norm)."""


@dataclass
class Step:
    """One optimiser step in flight, as this worker runs it."""

    passes: list[Indices]
    share: int
    """This worker's samples; 0: its only pass counts for nothing."""
    total: int
    """The group's samples."""
    times: StepTimes
    marks: list[Mark]
    handed_out: int = 0
    backwards: int = 0
    fate: Literal["open", "reduced", "applied", "void"] = "open"
    loss: float = 0.0
    local_sq: float | None = None
    global_sq: float | None = None

    def weight(self, samples: int) -> float:
        """What a micro-batch's mean loss counts in the mean over the global batch."""
        return samples / self.total if self.share else 0.0


class Training:
    """Runs steps on one replica within the worker's groups."""

    def __init__(
        self,
        participation: Participation,
        link: Link,
        keeper: Keeper,
        replica: Replica,
        averager: GradientAverager,
        order: EpochOrder,
        clock: Clock,
        device: torch.device,
        pacer: Pacer | None,
    ) -> None:
        self._participation = participation
        self._link = link
        self._keeper = keeper
        self._replica = replica
        self._averager = averager
        self._order = order
        self._clock = clock
        self._device = device
        self._pacer = pacer
        self._step: Step | None = None
        self._decision = Decision()
        self._micro_ceiling: int | None = None
        self._last_end: float | None = None
        self._last_plan: tuple[int, int] = (0, 0)
        self.loop_epoch: int | None = None
        """The epoch that the script's loop is in; None outside."""
        self.loss = math.nan
        """Mean loss over the last applied step's global batch."""

    # --- the loop -----------------------------------------------------------------------------------------------

    def batches(self, fetch: Fetch) -> Iterator[Any]:
        """Yield this worker's micro-batches until the epoch of the script's loop ends."""
        epoch = self.loop_epoch
        if epoch is None:
            raise UsageError("iterate session.loader inside `for epoch in session.epochs(...)`")
        try:
            while (step := self._next_step(epoch)) is not None:
                self._step = step
                while step.handed_out < len(step.passes) and step.fate == "open":
                    begun = time.perf_counter()
                    batch = fetch(step.passes[step.handed_out])
                    step.times.data_s += time.perf_counter() - begun
                    step.handed_out += 1
                    step.times.pass_begins()
                    yield batch
                    self._check_used(step)
        finally:
            self._step = None

    def _next_step(self, epoch: int) -> Step | None:
        """Settle what was agreed, and lay out the next step; None when ``epoch`` is over."""
        while True:
            self.settle()
            progress = self._replica.progress
            if progress.finished or progress.position.epoch != epoch:
                return None
            group = self._participation.group
            assert group is not None
            if progress.position.offset == 0:
                try:
                    group.gate(f"epoch-{epoch}")
                except GroupLost as error:
                    self._participation.lose(error, progress.step)
                    continue
            return self._lay_out()

    def _lay_out(self) -> Step:
        participation, progress = self._participation, self._replica.progress
        plan = participation.plan
        assert plan is not None
        parts = self._order.step(progress.position, participation.local_batches())
        mine = parts[participation.rank]
        share, total = len(mine), sum(len(part) for part in parts)
        if share == 0:
            mine = parts[0][:1].repeat(_DUMMY_SAMPLES)
        participation.acknowledge(progress.step + 1)
        self._averager.reset()
        passes = micro_batches(mine, plan.accumulation, self._micro_ceiling) if share else [mine]
        return Step(passes, share, total, StepTimes(self._clock), self._marks())

    def _marks(self) -> list[Mark]:
        plan = self._participation.plan
        assert plan is not None
        marks: list[Mark] = []
        if self._participation.entered:
            marks.append("first")
        key = (plan.generation, plan.version)
        if key != self._last_plan:
            marks.append("after-change")
        if self._keeper.just_saved():
            marks.append("checkpoint")
        if self._replica.progress.position.offset == 0:
            marks.append("evaluation")
        self._participation.entered, self._last_plan = False, key
        return marks

    def _check_used(self, step: Step) -> None:
        if step.backwards < step.handed_out:
            raise UsageError("a batch was not used: call session.backward(loss) for every batch that the loader yields")
        if step.fate == "reduced":
            raise UsageError("optimizer.step() was not called after session.backward(loss); call it for every batch")

    def settle(self) -> None:
        """At a boundary: do what the group agreed on, and be in a group afterwards."""
        decision, self._decision = self._decision, Decision()
        participation, replica = self._participation, self._replica
        if participation.group is not None:
            self._keeper.keep_if_due(replica, participation.generation, main=participation.rank == 0)
            if decision.stop:
                self._end_by_order()
            if decision.disband:
                self._keeper.keep_now(replica, participation.generation, main=participation.rank == 0)
                participation.depart_together(replica)
            if decision.finish:
                replica.progress = replace(replica.progress, finished=True)
            if decision.generation is not None:
                participation.change(decision.generation, replica, self._load)
            elif decision.plan_version is not None:
                participation.adopt_plan(decision.plan_version)
            participation.leave_if_overdue(replica)
        participation.enter_any(replica, self._load)
        self._link.standing.step = replica.step

    def _end_by_order(self) -> None:
        stop = self._link.directives.stop
        if stop is None or stop.checkpoint:
            main = self._participation.rank == 0
            self._keeper.keep_now(self._replica, self._participation.generation, main=main)
        self._participation.depart("stopped", self._replica)

    def _load(self) -> bool:
        return self._keeper.load(self._replica)

    def finish(self) -> None:
        """End together: all members have all steps, rank 0's final checkpoint is committed, nobody waits for anybody."""
        while True:
            self.settle()
            group = self._participation.group
            assert group is not None
            try:
                group.gate("finish")
                if group.rank == 0:
                    self._keeper.keep_final(self._replica, group.generation)
                    group.announce("final")
                    break
                group.await_key("final")
                break
            except GroupLost as error:
                self._participation.lose(error, self._replica.step)
        try:
            group.farewell(5.0)
        except GroupLost:
            pass  # all is kept; whoever is gone needs nothing of this worker any more
        self._participation.close()

    # --- one micro-batch ----------------------------------------------------------------------------------------

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of one micro-batch, weighted; with the last one of a step, the group's exchange."""
        step = self._checked_step(loss)
        indices = step.passes[step.backwards]
        weight = step.weight(len(indices))
        step.backwards += 1
        final = step.backwards == len(step.passes)
        participation = self._participation
        group = participation.group
        assert group is not None
        try:
            if final and self._pacer is None:
                self._averager.arm(group)
            no_memory = self._compute(loss, weight, len(indices), step)
            step.times.pass_ends()
            if no_memory is not None:
                self._out_of_memory(no_memory, len(indices))
            if final or no_memory is not None:
                self._exchange(step, void=no_memory is not None)
        except GroupLost as error:
            self._void(step)
            participation.lose(error, self._replica.step)

    def _checked_step(self, loss: Tensor) -> Step:
        step = self._step
        if step is None:
            raise UsageError("session.backward(loss) belongs inside the loop over session.loader")
        if step.fate != "open" or step.backwards >= step.handed_out:
            raise UsageError("session.backward was called twice for one batch; call it once, on the sum of the losses")
        if loss.numel() != 1 or not loss.requires_grad:
            raise UsageError(
                f"session.backward needs the mean loss of the batch, one number with a gradient; got shape"
                f" {tuple(loss.shape)}, requires_grad={loss.requires_grad}"
            )
        if step.backwards and step.share and not self._averager.has_gradients():
            raise UsageError(
                "the gradients of the step's earlier batches are gone; clear them with the prepared optimizer's zero_grad()"
                " only, which knows when a step begins"
            )
        return step

    def _compute(self, loss: Tensor, weight: float, samples: int, step: Step) -> str | None:
        """Backward, paced; returns torch's message when memory did not suffice."""
        begun = step.times.begun
        try:
            if self._pacer is not None:
                self._pacer.check_memory(samples)
            if weight > 0:
                if loss.dtype in (torch.float16, torch.bfloat16):
                    loss = loss.float()
                torch.autograd.backward(loss, torch.full_like(loss, weight))
                step.loss += weight * float(loss.detach())
        except torch.OutOfMemoryError as error:
            if samples == 1:
                raise
            return str(error)[:500]
        if self._pacer is not None:
            self._pacer.pace(samples, begun)
        return None

    def _out_of_memory(self, message: str, samples: int) -> None:
        """Say so, and from now on run the same share in more, smaller passes: the global batch stays what it was."""
        release_memory(self._device)
        self._micro_ceiling = max(1, samples // 2)
        plan = self._participation.plan
        assert plan is not None
        self._link.send(
            OutOfMemory(generation=plan.generation, plan_version=plan.version, local_batch=samples, message=message)
        )

    def _exchange(self, step: Step, void: bool) -> None:
        """Finish the reduction together with the votes, and decide."""
        participation, progress = self._participation, self._replica.progress
        group, plan = participation.group, participation.plan
        assert group is not None and plan is not None
        self._averager.launch(group)
        step.local_sq = None if void else self._averager.local_square(step.weight(step.share))
        directives = self._link.directives
        vote = Vote(
            plan_version=max(directives.newest_version(group.generation), plan.version),
            generation=max(directives.newest_generation(), group.generation),
            step=progress.step,
            epoch=progress.position.epoch,
            offset=progress.position.offset,
            wish=participation.wish() | (Wish.VOID if void else Wish.NONE),
            loss=step.loss,
            grad_sq=step.share * (step.local_sq or 0.0),
        )
        rows, work = group.all_gather(torch.tensor(vote.encode(), dtype=torch.float64))
        group.wait([*self._averager.works, work])
        votes = [Vote.decode(row) for row in rows.tolist()]
        self._decision = decide(votes, plan_version=plan.version, generation=group.generation)
        if self._decision.void:
            self._void(step)
            return
        step.global_sq = self._averager.finish()
        step.times.reduced()
        step.fate = "reduced"

    def _void(self, step: Step) -> None:
        step.fate = "void"
        self._averager.reset()

    # --- what the optimiser and the scheduler ask (StepGate) -------------------------------------------------------

    @property
    def learning_rate_factor(self) -> float:
        """The running plan's factor on the base learning rate."""
        plan = self._participation.plan
        return 1.0 if plan is None else plan.learning_rate_factor

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
        step, plan = self._step, self._participation.plan
        assert step is not None and plan is not None
        step.fate = "applied"
        before = self._replica.progress
        after = replace(
            before,
            position=before.position.advance(step.total, self._order.size),
            step=before.step + 1,
            samples=before.samples + step.total,
        )
        self._replica.progress = after
        self._link.standing.step = after.step
        self.loss = self._decision.loss
        now = time.perf_counter()
        compute_s, wait_s = step.times.compute_s(), step.times.wait_s()
        elapsed = now - self._last_end if self._last_end is not None else compute_s + wait_s + step.times.data_s
        self._last_end = now
        mean = step.loss / step.weight(step.share) if step.share else None
        finite = mean is not None and math.isfinite(mean) and abs(mean) < 1e30
        self._link.report(
            plan.generation,
            StepReport(
                step=after.step,
                plan_version=plan.version,
                samples=after.samples,
                epoch=before.position.epoch,
                local_batch=step.share,
                compute_s=round(compute_s, 7),
                wait_s=round(wait_s, 7),
                data_s=round(step.times.data_s, 7),
                step_s=round(elapsed, 7),
                loss=mean if finite else None,
                diverged=mean is not None and not finite,
                local_grad_sq=_bounded(step.local_sq),
                global_grad_sq=_bounded(step.global_sq),
                marks=step.marks[:4],
            ),
        )

    def may_schedule(self) -> bool:
        """Whether a scheduler moves on: after an applied update, or between epochs that this worker really lived."""
        step = self._step
        return not self._replica.overtaken if step is None else step.fate == "applied"


def _bounded(square: float | None) -> float | None:
    return square if square is not None and math.isfinite(square) and square <= 1e300 else None
