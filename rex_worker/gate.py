"""What the optimiser and the scheduler must know of the loop, and how they know it before there is one.

``session.prepare`` comes before the training exists, as a script creates its optimiser first. So the wrappers ask a
gate that answers for an idle session until the training takes its place.
"""

from __future__ import annotations

from typing import Protocol

from rex_worker.errors import UsageError


class StepGate(Protocol):
    """Says where the loop stands."""

    @property
    def learning_rate_factor(self) -> float:
        """The running plan's factor on the base learning rate."""

    def may_clear(self) -> bool:
        """Whether gradients may be cleared: none of an unfinished step are there."""

    def take_update(self) -> bool:
        """Whether the optimiser updates now: the step's last micro-batch is done and the step is not void."""

    def updated(self) -> None:
        """The update is done."""

    def may_schedule(self) -> bool:
        """Whether a scheduler moves on now."""

    def schedule_steps(self) -> int:
        """By how many steps, if it goes by samples: one per initial batch's worth of them."""


class LateGate:
    """Answers for a session that has not begun; then for its training, once that is put into ``training``."""

    def __init__(self) -> None:
        self.training: StepGate | None = None

    @property
    def learning_rate_factor(self) -> float:
        """1 before there is a plan."""
        return 1.0 if self.training is None else self.training.learning_rate_factor

    def may_clear(self) -> bool:
        """Always, before the first step."""
        return self.training is None or self.training.may_clear()

    def take_update(self) -> bool:
        """Not before the first step: an update then would differ between workers."""
        if self.training is None:
            raise UsageError("optimizer.step() belongs inside the loop over session.loader")
        return self.training.take_update()

    def updated(self) -> None:
        """Passed on."""
        if self.training is not None:
            self.training.updated()

    def may_schedule(self) -> bool:
        """A script may set its schedule up as it likes."""
        return self.training is None or self.training.may_schedule()

    def schedule_steps(self) -> int:
        """As often as the script calls."""
        return 1 if self.training is None else self.training.schedule_steps()
