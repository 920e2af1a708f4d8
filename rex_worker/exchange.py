"""What the workers of a group do together in each step: sum their gradients, and vote.

A backward pass computes this worker's gradients, weighted, and they leave for the others while it goes on; the votes
travel with the last of them. Afterwards each worker holds the gradient of the global batch and the same decision. What
goes wrong on one worker, such as full memory, makes the step void on all of them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rex_worker.agreement import Decision, Vote, Wish, decide
from rex_worker.averaging import Averager
from rex_worker.devices import Pacer, release_memory
from rex_worker.errors import UsageError, first_line
from rex_worker.headroom import Headroom
from rex_worker.link import Link
from rex_worker.participation import Participation, Term
from rex_worker.replica import Replica
from rex_worker.scaler import ElasticScaler
from rex_worker.step import Step

_LOW_PRECISION = (torch.float16, torch.bfloat16)


class Exchange:
    """This worker's part in the steps of its groups."""

    def __init__(
        self,
        participation: Participation,
        link: Link,
        replica: Replica,
        averager: Averager,
        headroom: Headroom,
        scaler: ElasticScaler | None,
        device: torch.device,
        pacer: Pacer | None,
    ) -> None:
        self._participation = participation
        self._link = link
        self._replica = replica
        self._averager = averager
        self._headroom = headroom
        self._scaler = scaler
        self._device = device
        self._pacer = pacer
        self.ended_at: float | None = None
        """When the group's last exchange was over, on ``time.perf_counter``; None in a new group."""

    def compute(self, loss: Tensor, raw: Tensor, weight: float, step: Step, term: Term, *, final: bool) -> None:
        """Backward, paced; leaves torch's message in ``step.no_memory`` when memory did not suffice."""
        if final and self._pacer is None:
            self._averager.arm(term.group)
        number = step.backwards - 1
        samples, statistics_weight = len(step.passes[number]), step.pass_weight(number)
        try:
            if self._pacer is not None:
                self._pacer.check_memory(samples)
            if self._averager.together and weight == 0 < statistics_weight and not torch.isfinite(raw):
                raise UsageError(
                    "a batch without units has no finite loss, yet each worker runs every backward pass of a sharded"
                    " model: divide the sum of the losses by max(units, 1)"
                )
            if weight > 0 or self._averager.together:
                loss = loss.float() if loss.dtype in _LOW_PRECISION else loss
                torch.autograd.backward(loss, torch.full_like(loss, weight))
            if weight > 0:
                step.losses.append((weight, raw))
            self._averager.pass_ends(weight)
            if number == 0 and not final and term.group.size == 1 and weight > 0 and step.units is None:
                square = self._averager.square_so_far()
                step.first_sq = None if square is None else square / (self._scale() * weight) ** 2
            self._replica.statistics.pass_ends(statistics_weight)
        except (RuntimeError, MemoryError) as error:
            if samples == 1 or not self._headroom.is_full(error):
                raise
            step.no_memory = first_line(error)
        # Outside of the ``except``: the error's traceback holds on to the failed pass.
        if step.no_memory is not None:
            release_memory(self._device)
            self._headroom.ran_out(term.plan, samples, step.no_memory)
        elif self._pacer is not None:
            # The emulated device computes while it does not wait for others' parts of the model.
            waited_s = self._averager.waited_s() - step.times.inside_s
            step.times.inside_s += waited_s
            self._pacer.pace(samples, step.times.begun + waited_s)

    def meet(self, term: Term, step: Step) -> Decision:
        """Finish the reduction together with the votes, and decide."""
        group, scaler, unfit = term.group, self._scaler, step.no_memory is not None
        if unfit:
            self._averager.give_way()
        self._averager.complete(group)
        step.times.inside_s = self._averager.waited_s()
        # What is reported is of unscaled gradients.
        scale = self._scale()
        step.local_sq = None if unfit else self._averager.local_square(scale * step.own_weight)
        vote = step.vote(
            self._replica.progress,
            self._headroom.held_version(term),
            max(self._link.directives.newest_generation(), group.generation),
            self._participation.wish() | (Wish.VOID if unfit else Wish.NONE),
        )
        self._averager.launch(group, vote.encode())
        group.wait(self._averager.works)
        group.tighten()
        votes = [Vote.decode(row) for row in self._averager.votes(group)]
        decision = decide(votes, plan_version=term.plan.version, generation=group.generation)
        self.ended_at = step.times.exchanged(decision.latest_s)
        if decision.void:
            self.void(step)
            return decision
        step.count_all(decision.units)
        step.global_sq = self._averager.finish(step.factor) / scale**2
        step.overflowed = scaler is not None and scaler.is_enabled() and not math.isfinite(step.global_sq)
        self._replica.statistics.take_over()
        step.fate = "reduced"
        return decision

    def _scale(self) -> float:
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())

    def void(self, step: Step) -> None:
        """Nobody applies the step: nothing of it is to remain."""
        step.fate = "void"
        self._averager.reset()
        self._replica.statistics.put_back()
        self._headroom.void()
