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

from rex_worker.errors import Desynchronised


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
    wish: int
    loss: float
    """Sum over this worker's micro-batches of (m/B) x mean loss: they add up to the mean over the global batch."""
    grad_sq: float
    """b_i |g_i|^2, the worker's term of the pooled noise estimate."""

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
                self.wish,
                self.loss,
                self.grad_sq,
            )
        ]

    @classmethod
    def decode(cls, row: Sequence[float]) -> Vote:
        """Read what ``encode`` wrote."""
        *whole, loss, grad_sq = row
        version, generation, step, epoch, offset, wish = (int(value) for value in whole)
        return cls(version, generation, step, epoch, offset, wish, loss, grad_sq)


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
    """Mean loss over the global batch."""


def decide(votes: Sequence[Vote], *, plan_version: int, generation: int) -> Decision:
    """Evaluate the rules on the votes of all ranks, under the running plan and generation.

    A new plan or membership is taken up when all hold the same newest one; any worker can stop, finish or void for all.

    Raises:
        Desynchronised: The workers do not stand at the same step.
    """
    places = {(vote.step, vote.epoch, vote.offset) for vote in votes}
    if len(places) != 1:
        described = "; ".join(f"rank {rank}: step {v.step}, epoch {v.epoch}+{v.offset}" for rank, v in enumerate(votes))
        raise Desynchronised(
            f"the workers stand at different steps ({described[:500]}); every worker must run the same loops over"
            " session.epochs and session.loader"
        )
    wishes = [Wish(vote.wish) for vote in votes]
    return Decision(
        plan_version=_common({vote.plan_version for vote in votes}, above=plan_version),
        generation=_common({vote.generation for vote in votes}, above=generation),
        stop=any(Wish.STOP in wish for wish in wishes),
        disband=all(Wish.LEAVE in wish for wish in wishes),
        finish=any(Wish.FINISH in wish for wish in wishes),
        void=any(Wish.VOID in wish for wish in wishes),
        loss=sum(vote.loss for vote in votes),
    )


def _common(newest: set[int], above: int) -> int | None:
    value = next(iter(newest))
    return value if len(newest) == 1 and value > above else None
