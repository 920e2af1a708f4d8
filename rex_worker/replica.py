"""What all workers hold alike: model, optimiser, schedule, and how far the data is used up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from rex_worker import randomness
from rex_worker.buffers import RunningStatistics
from rex_worker.errors import RexError
from rex_worker.group import Group
from rex_worker.sampler import Position
from rex_worker.synchronisation import synchronise


@dataclass(frozen=True)
class Progress:
    """How far the training is; the same on all workers of a group after each step."""

    position: Position
    step: int = 0
    samples: int = 0
    finished: bool = False
    """The script ended the training before its last epoch."""


class Stateful(Protocol):
    """Something with a state of plain data and tensors that belongs to the training (torch's own convention)."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Take a state over."""


class Replica:
    """This worker's copy of the training state."""

    together = False
    """Whether the workers call the model together, each time; then one alone cannot."""
    entered_at = -1
    """Of a state in parts: the step at which its present group formed."""
    passed_over = 0
    """Step of the newest checkpoint, if it was damaged when this worker loaded an older one."""
    kept_step = 0
    """Of a state in parts: the last step that was or is being kept, as all members of the group know it."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer,
        scheduler: Any,
        progress: Progress,
        dataset_size: int,
        extras: dict[str, Stateful] | None = None,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._dataset_size = dataset_size
        self._extras = extras or {}
        self.progress = progress
        self.statistics = RunningStatistics(model)
        """What batch normalisation keeps; alike on all workers between steps."""
        self.rank = 0
        """This worker's place in the group that it enters or is in; its random numbers depend on it."""
        self.overtaken = False
        """The group went on to another epoch than the one that the script's loop is in."""
        self._agreed = False

    @property
    def has_state(self) -> bool:
        """Whether the state was agreed on in a group, or loaded."""
        return self._agreed

    @property
    def astray(self) -> bool:
        """Whether passes over the model yield nothing of worth just now: never, where each worker has all of it."""
        return False

    @property
    def step(self) -> int:
        """Optimiser steps applied."""
        return self.progress.step

    def synchronise(self, group: Group, min_step: int, load: Callable[[], bool], device: torch.device) -> None:
        """Bring all members of ``group`` to one state; see ``rex_worker.synchronisation``."""
        synchronise(group, self, min_step, load, device)

    def like(self, name: str, shape: tuple[int, ...]) -> DTensor | None:
        """What a tensor of the state, known by its name and shape, is cut like; None: each worker has all of it."""
        return None

    def hand_over(self, group: Group, leaving: Sequence[int]) -> None:
        """Before ``group`` ends as planned: nothing, as each member has all of the state."""

    def mark_agreed(self) -> None:
        """The state is the group's from now on."""
        self._agreed = True
        self.statistics.agreed()

    def trained(self) -> Any:
        """The tensors that training changes alike on all workers; other buffers than these are a worker's own."""
        return [list(self._model.parameters()), self.statistics.tensors, self._optimizer.state_dict()["state"]]

    def state(self) -> dict[str, Any]:
        """Everything, as nested plain data and tensors that share memory with the live ones."""
        progress = self.progress
        position = progress.position
        return {
            "model": dict(self._model.state_dict()),
            "optimizer": self._optimizer.state_dict(),
            "scheduler": None if self._scheduler is None else self._scheduler.state_dict(),
            "extras": {name: extra.state_dict() for name, extra in self._extras.items()},
            "dataset_size": self._dataset_size,
            "position": [position.seed, position.epoch, position.offset],
            "step": progress.step,
            "samples": progress.samples,
            "finished": progress.finished,
            "random": randomness.capture(self._device()),
        }

    def adopt(self, state: dict[str, Any], *, resumed: bool = False) -> None:
        """Take over ``state``, except that only rank 0 of a training that is ``resumed`` draws its random numbers.

        Raises:
            RexError: It belongs to another model, optimiser or dataset.
        """
        size = state["dataset_size"]
        if size != self._dataset_size:
            raise RexError(f"the state found was trained on {_data(size)}, this script has {_data(self._dataset_size)}")
        if (state["scheduler"] is None) != (self._scheduler is None):
            raise RexError("the state found and this script differ in whether session.prepare gets a scheduler")
        unlike = set(state["extras"]) ^ set(self._extras)
        if unlike:
            raise RexError(f"the state found and this script differ in what belongs to it: {sorted(unlike)}")
        try:
            self._model.load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])
            if self._scheduler is not None:
                self._scheduler.load_state_dict(state["scheduler"])
            for name, extra in self._extras.items():
                extra.load_state_dict(state["extras"][name])
            if resumed and self.rank == 0:
                randomness.restore(state["random"], self._device())
            else:
                randomness.derive(state["position"][0], state["step"], self.rank)
        except (RuntimeError, ValueError, KeyError) as error:
            raise RexError(f"the state found does not fit this model and optimiser: {str(error)[:800]}") from error
        epoch = self.progress.position.epoch
        self.progress = Progress(Position(*state["position"]), state["step"], state["samples"], state["finished"])
        self.overtaken = self.progress.position.epoch != epoch
        self.mark_agreed()

    def _device(self) -> torch.device:
        return next((parameter.device for parameter in self._model.parameters()), torch.device("cpu"))


def _data(size: int) -> str:
    return f"{size} samples" if size else "a stream"
