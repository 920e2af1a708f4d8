"""How a group changes its plan or its members without asking anybody.

Messages of the operator reach the workers at different moments, and each worker must still run every step under the
same plan as the others. So each step carries one small vector per worker: what it holds, and whether it wants to go.
All workers see the same vectors after the step, evaluate the same rules, and so come to the same decision for the
next boundary, with the operator away as well as with it there.

Pure: the exchange itself is ``rex_worker.group``'s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntFlag

from rex_worker.errors import Desynchronised, UsageError


class Wish(IntFlag):
    """What a worker asks of its group."""

    NONE = 0
    STOP = 1
    """The operator said Stop: everybody ends at the next boundary."""
    LEAVE = 2
    """This process was told to go (SIGTERM)."""
    FINISH = 4
    """The script ends the training early."""
    VOID = 8
    """This worker could not do its part of the step (out of memory): nobody applies it."""


@dataclass(frozen=True)
class Vote:
    """One worker's part of the exchange; each field travels as one float64, exact up to 2**53."""

    plan_version: int
    """Newest plan of the running generation that this worker holds."""
    generation: int
    """Newest generation that this worker holds a membership of."""
    step: int
    """Steps applied before the one in flight."""
    epoch: int
    offset: int
    extent: int
    """Twice the step's samples, and 1 more when it ends the epoch."""
    data_mark: int
    """Checksum of what the step's data gave."""
    wish: int
    loss: float
    """Sum over this worker's micro-batches of (m/B) x mean loss: they add up to the mean over the global batch. With
    ``units`` m is a micro-batch's units, and the sum is still to be multiplied by B over all units."""
    units: float
    """What its losses were means over, such as tokens; -1: the script gave no weights, losses count by samples."""
    grad_sq: float
    """b_i |g_i|^2, the worker's term of the pooled noise estimate."""
    arrived_s: float
    """Seconds from the end of the group's last exchange to the end of this worker's own part; -1: there was none."""

    def encode(self) -> list[float]:
        """Return the vote as ``VOTE_NUMBERS`` numbers."""
        return [
            float(value)
            for value in (
                self.plan_version,
                self.generation,
                self.step,
                self.epoch,
                self.offset,
                self.extent,
                self.data_mark,
                self.wish,
                self.loss,
                self.units,
                self.grad_sq,
                self.arrived_s,
            )
        ]

    @classmethod
    def decode(cls, row: Sequence[float]) -> Vote:
        """Read what ``encode`` wrote."""
        *whole, loss, units, grad_sq, arrived_s = row
        version, generation, step, epoch, offset, extent, mark, wish = (int(value) for value in whole)
        return cls(version, generation, step, epoch, offset, extent, mark, wish, loss, units, grad_sq, arrived_s)


VOTE_NUMBERS = len(fields(Vote))


@dataclass(frozen=True)
class Decision:
    """What all workers of the group do at the next boundary."""

    plan_version: int | None = None
    generation: int | None = None
    stop: bool = False
    disband: bool = False
    """Everybody was told to go: save and leave together."""
    finish: bool = False
    void: bool = False
    loss: float = math.nan
    """Mean loss over the global batch; with ``units`` still to be multiplied by samples over units."""
    units: float | None = None
    """All workers' units together; None: losses count by samples."""
    latest_s: float | None = None
    """When the last worker had done its part, in seconds since the last exchange; None if some cannot tell."""


def decide(votes: Sequence[Vote], *, plan_version: int, generation: int) -> Decision:
    """Evaluate the rules on the votes of all ranks, under the running plan and generation.

    A new plan or membership is taken up when all hold the same newest one; any worker can stop, finish or void for all.

    Raises:
        Desynchronised: The workers do not stand at the same step, or their data are not the same.
        UsageError: Some workers gave their losses weights, others did not.
    """
    places = {(vote.step, vote.epoch, vote.offset) for vote in votes}
    if len(places) != 1:
        described = "; ".join(f"rank {rank}: step {v.step}, epoch {v.epoch}+{v.offset}" for rank, v in enumerate(votes))
        raise Desynchronised(
            f"the workers stand at different steps ({described[:500]}); every worker must run the same loops over"
            " session.epochs and session.loader"
        )
    if len({(vote.extent, vote.data_mark) for vote in votes}) != 1:
        described = "; ".join(
            f"rank {rank}: {v.extent // 2} samples{', the last' if v.extent % 2 else ''}, checksum {v.data_mark:08x}"
            for rank, v in enumerate(votes)
        )
        raise Desynchronised(
            f"the workers read different data for the step at epoch {votes[0].epoch}+{votes[0].offset}"
            f" ({described[:500]}); every worker must be given the same samples in the same order, so a stream must not"
            " split or shuffle itself by worker"
        )
    wishes = [Wish(vote.wish) for vote in votes]
    void = any(Wish.VOID in wish for wish in wishes)
    return Decision(
        plan_version=_common({vote.plan_version for vote in votes}, above=plan_version),
        generation=_common({vote.generation for vote in votes}, above=generation),
        stop=any(Wish.STOP in wish for wish in wishes),
        disband=all(Wish.LEAVE in wish for wish in wishes),
        finish=any(Wish.FINISH in wish for wish in wishes),
        void=void,
        loss=sum(vote.loss for vote in votes),
        units=None if void else _all_units([vote.units for vote in votes]),
        latest_s=_latest([vote.arrived_s for vote in votes]),
    )


def _latest(arrivals: Sequence[float]) -> float | None:
    return max(arrivals) if min(arrivals) >= 0 else None


def _all_units(units: Sequence[float]) -> float | None:
    if max(units) < 0:
        return None
    if min(units) < 0:
        raise UsageError("some workers call session.backward(loss, weight=...), others session.backward(loss)")
    return sum(units)


def _common(newest: set[int], above: int) -> int | None:
    value = next(iter(newest))
    return value if len(newest) == 1 and value > above else None
