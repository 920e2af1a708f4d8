"""What the base learning rate is multiplied with at an update, the same on all workers.

The plan says which factor goes with its batch. Taken up at once, a larger one meets a momentum that was gathered at the
smaller batch, so the factor climbs to it: by at most 1/m per update, where m is what the optimiser keeps of its past
from one update to the next (momentum, or the slower of Adam's betas; AdaptDL's "smooth scaling"). A smaller factor
counts at once, as it is the smaller batch that makes the present rate dangerous; so does the first one of a training,
which has no past. A warm-up comes on top. It is clocked in samples of the job, so that a resume, a newcomer or another
batch changes nothing about it.

The climb is the only state. It belongs to the training state, so it moves with applied updates only, and whoever joins
or resumes goes on from where the group is.
"""

from __future__ import annotations

import math
from typing import Any

from torch.optim import Optimizer

from rex_worker.protocol import Plan
from rex_worker.sampler import Position

SHORTEST_MEMORY = 0.9
"""An optimiser that keeps less of its past than this, or none, climbs as one that keeps so much: 11 % an update."""
_LONGEST_MEMORY = 0.9999
_DIVIDES = {"betas", "rho", "centered", "initial_accumulator_value", "beta2_decay", "ns_steps", "etas"}
"""Settings by which one knows them: Adam's family and Lion, Adadelta, RMSprop, Adagrad, Adafactor, Muon, Rprop."""


class Rates:
    """The factor in force: the running plan's, as far as the climb has come."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._reached: float | None = None

    def factor(self, plan: Plan, samples: int) -> float:
        """Return the factor of the update that brings the job to ``samples``."""
        return self._next(plan) * warmth(samples, plan.warmup_samples)

    def applied(self, plan: Plan) -> None:
        """Note that an update was made under ``plan``."""
        self._reached = self._next(plan)

    def _next(self, plan: Plan) -> float:
        target, reached = plan.learning_rate_factor, self._reached
        if reached is None or target <= reached:
            return target
        return min(target, reached / memory(self._optimizer))

    def state_dict(self) -> dict[str, Any]:
        """How far the climb has come; None before the first update."""
        return {"reached": self._reached}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there. Raises ``ValueError`` when it is no factor."""
        reached = state["reached"]
        if reached is not None and not (isinstance(reached, float) and 0 < reached < math.inf):
            raise ValueError(f"the learning-rate factor in the state is {reached!r}; it must be a positive number")
        self._reached = reached


def memory(optimizer: Optimizer) -> float:
    """Return what the optimiser keeps of its past from one update to the next, from `SHORTEST_MEMORY` to below 1."""
    kept = [SHORTEST_MEMORY]
    for group in optimizer.param_groups:
        kept += [float(group[name]) for name in ("momentum", "rho") if name in group]
        kept += [float(group["alpha"])] if "centered" in group else []
        kept += [float(beta) for beta in group.get("betas", ())]
    return min(max(kept), _LONGEST_MEMORY)


def is_adaptive(optimizer: Optimizer) -> bool:
    """Return whether it divides by the gradient's own size, so that its steps do not grow with the gradient."""
    return any(not _DIVIDES.isdisjoint(group) for group in optimizer.param_groups)


def warmth(samples: int, length: int) -> float:
    """Return the share of the rate, 0 to 1, that is allowed after ``samples`` of a warm-up over ``length`` samples."""
    return 1.0 if samples >= length else samples / length


def schedule_steps(plan: Plan, before: Position, samples: int, *, ends_epoch: bool) -> int:
    """Return by how many steps a schedule moves on with an update on the next ``samples`` from ``before``.

    They are the updates that a run with the initial batch would have completed on them: counted from the epoch's start,
    the last one of an epoch taking what is left. However the samples of an epoch are cut into steps, the numbers add up
    to the same. 1 where the plan names no initial batch.
    """
    batch = plan.initial_batch
    if not batch:
        return 1
    end = before.offset + samples
    return (-(-end // batch) if ends_epoch else end // batch) - before.offset // batch
