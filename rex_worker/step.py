"""One optimiser step in flight, as this worker runs it: its samples, its weights, its times, and what became of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from torch import Tensor

from rex_worker.agreement import Vote, Wish
from rex_worker.protocol import Mark, StepReport
from rex_worker.replica import Progress
from rex_worker.sampler import MicroBatch
from rex_worker.timing import StepTimes

_LARGEST_LOSS = 1e30
_LARGEST_SQUARE = 1e300


@dataclass
class Step:
    """A step is ``open`` until the group's gradients are there (``reduced``); then ``applied``, or else ``void``."""

    passes: tuple[MicroBatch, ...]
    share: int
    """This worker's samples; 0: its only pass counts for nothing."""
    total: int
    """The group's samples."""
    ends_epoch: bool
    data_mark: int
    """Checksum of what the data gave; the same on all workers."""
    times: StepTimes
    marks: list[Mark] = field(default_factory=list)
    handed_out: int = 0
    backwards: int = 0
    fate: Literal["open", "reduced", "applied", "void"] = "open"
    schedule_steps: int = 0
    """How far a schedule moves on with it, once it is applied."""
    no_memory: str | None = None
    """What the device said when its memory did not suffice for this worker's part."""
    losses: list[tuple[float, Tensor]] = field(default_factory=list)
    """Of this worker's passes: weight, and mean loss where it lies."""
    units: float | None = None
    """What this worker's losses were means over, such as tokens; None: losses count by samples."""
    factor: float = 1.0
    """What the sums over all workers are multiplied with: samples over units, 0 if there are no units at all."""
    overflowed: bool = False
    """A gradient scaler skipped the update."""
    local_sq: float | None = None
    global_sq: float | None = None
    first_sq: Tensor | None = None
    """Of the first pass's own mean gradient, where it lies; known where one worker alone runs several passes."""

    def pass_weight(self, number: int) -> float:
        """What the mean loss of a pass counts in the mean over the global batch; 0 for a filler."""
        part = self.passes[number]
        return 0.0 if part.filler else self.weight(len(part))

    def weight(self, samples: int) -> float:
        """What the mean loss of ``samples`` of this worker's samples counts in the mean over the global batch."""
        return samples / self.total if self.share else 0.0

    def loss_weight(self, number: int, units: float | None) -> float:
        """Weight of a pass's loss, whose mean is over ``units`` if it is not over samples; they are counted here."""
        weight = self.pass_weight(number)
        if units is None:
            return weight
        counted = units if weight > 0 else 0.0
        self.units = (self.units or 0.0) + counted
        return counted / self.total

    @property
    def own_weight(self) -> float:
        """Sum of the weights of this worker's passes."""
        return self.weight(self.share) if self.units is None else self.units / self.total

    @cached_property
    def loss(self) -> float:
        """Sum over this worker's passes of weight x mean loss; once they are all done."""
        return sum(weight * float(loss) for weight, loss in self.losses)

    def count_all(self, units: float | None) -> None:
        """Take in what all workers' losses were means over."""
        if units is not None:
            self.factor = self.total / units if units > 0 else 0.0
        if self.units is not None and self.local_sq is not None:
            # As if this worker's samples had as many units each as everybody's: the noise scale counts in samples.
            self.local_sq *= self.units * self.factor / self.share

    def vote(self, progress: Progress, plan_version: int, generation: int, wish: Wish) -> Vote:
        """This worker's part of the step's exchange."""
        return Vote(
            plan_version=plan_version,
            generation=generation,
            step=progress.step,
            epoch=progress.position.epoch,
            offset=progress.position.offset,
            extent=2 * self.total + self.ends_epoch,
            data_mark=self.data_mark,
            wish=wish,
            loss=self.loss,
            units=-1.0 if self.units is None else self.units,
            grad_sq=self.share * (self.local_sq or 0.0),
            arrived_s=self.times.arrives(),
        )

    def report(
        self, before: Progress, after: Progress, plan_version: int, elapsed_s: float | None, peak_bytes: int = 0
    ) -> StepReport:
        """What the operator learns of the applied step; ``elapsed_s`` since the last one, None for the first."""
        times = self.times
        compute_s, wait_s, comm_s, data_s = times.compute_s(), times.wait_s, times.comm_s, times.data_s
        mean = self.factor * self.loss / self.weight(self.share) if self.share and self.factor else None
        finite = mean is not None and abs(mean) < _LARGEST_LOSS
        return StepReport(
            step=after.step,
            plan_version=plan_version,
            samples=after.samples,
            epoch=before.position.epoch,
            local_batch=self.share,
            compute_s=round(compute_s, 7),
            wait_s=round(wait_s, 7),
            comm_s=None if comm_s is None else round(comm_s, 7),
            data_s=round(data_s, 7),
            step_s=round(compute_s + wait_s + (comm_s or 0.0) + data_s if elapsed_s is None else elapsed_s, 7),
            loss=mean if finite else None,
            diverged=mean is not None and not finite and not self.overflowed,
            local_grad_sq=_bounded(self.local_sq),
            global_grad_sq=_bounded(self.global_sq),
            first_pass=0 if self.first_sq is None else len(self.passes[0]),
            first_pass_sq=_bounded(None if self.first_sq is None else float(self.first_sq)),
            peak_bytes=peak_bytes,
            marks=self.marks,
        )


def _bounded(square: float | None) -> float | None:
    return square if square is not None and math.isfinite(square) and square <= _LARGEST_SQUARE else None
