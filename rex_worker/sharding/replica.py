"""The training state of a sharded model: this worker's part of it, in one group after another."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from rex_worker.errors import CheckpointMissing
from rex_worker.group import Group
from rex_worker.replica import Progress, Replica, Stateful
from rex_worker.sharding.averager import ShardedAverager
from rex_worker.sharding.dressing import Dressing, ShardPolicy
from rex_worker.sharding.holding import FRESH, Holding, hand_over, held
from rex_worker.sharding.resharding import Choice, choose, claims, describe, furthest, transfer
from rex_worker.sharding.usage import Usage
from rex_worker.sharding.wire import Wire
from rex_worker.state import unpack

log = logging.getLogger("rex.sharding")


class ShardedReplica(Replica):
    """This worker's part of a training state that is cut anew for each group.

    The model and the optimiser stay the same objects; their parameters do not.
    """

    together = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        scheduler: Any,
        progress: Progress,
        dataset_size: int,
        extras: dict[str, Stateful] | None,
        *,
        policy: ShardPolicy,
        device: torch.device,
        vote_numbers: int,
    ) -> None:
        self._fresh: Holding | None = None
        self._wire: Wire | None = None
        super().__init__(model, optimizer, scheduler, progress, dataset_size, extras)
        names = {parameter: name for name, parameter in model.named_parameters()}
        self._order = [[names[parameter] for parameter in group["params"]] for group in optimizer.param_groups]
        self._mesh_device = device
        self._dressing = Dressing(model, policy, device)
        self._parameters: dict[str, nn.Parameter] = {}
        self._usage: Usage | None = None
        self.averager = ShardedAverager(vote_numbers, self.statistics.cargo)
        self._fresh = self._holding = held(self.state(), FRESH, 0, 1, 0)
        self._group: Group | None = None
        """The group that the parts in the model belong to; None while they are worth nothing."""

    # --- what the base keeps as plain fields -------------------------------------------------------------------------

    @property
    def progress(self) -> Progress:
        """How far the training is."""
        return self._progress

    @progress.setter
    def progress(self, value: Progress) -> None:
        self._progress = value
        if value.step > 0:
            self._fresh = None

    @property
    def overtaken(self) -> bool:
        """Whether the script's loop is in another epoch than the group: then its passes disturb nobody."""
        return self._overtaken

    @overtaken.setter
    def overtaken(self, value: bool) -> None:
        self._overtaken = value
        if self._wire is not None:
            self._wire.silent = value

    @property
    def astray(self) -> bool:
        """Whether passes over the model yield nothing of worth at the moment: the group is lost, or elsewhere."""
        wire = self._wire
        return wire is not None and (wire.silent or wire.group.broken is not None)

    # --- from group to group ----------------------------------------------------------------------------------------

    def hand_over(self, group: Group, leaving: Sequence[int]) -> None:
        """Before ``group`` ends as planned: what the ranks ``leaving`` have goes to the others. All members call this.

        Raises:
            GroupLost: A member was lost meanwhile.
        """
        self._undress()
        if leaving and self._holding.count > 1:
            hand_over(group, self._holding, leaving, self._mesh_device)

    def synchronise(self, group: Group, min_step: int, load: Callable[[], bool], device: torch.device) -> None:
        """Shard the model over ``group``, and bring all members to one state.

        Args:
            group: The new group; every member calls this.
            min_step: A step that was committed before: with less the job must not go on.
            load: Loads this worker's parts of the newest checkpoint; False when there is none. Called on all ranks.
            device: Where tensors travel.

        Raises:
            GroupLost: A member was lost meanwhile; what this worker held it still holds.
            CheckpointMissing: Parts of the state are lost, and no checkpoint has them; raised on all members.
        """
        self._undress()
        self._dress(group)
        told = claims(group, self._holding)
        choice, best = choose(told), furthest(told)
        kept = max(min_step, 0)
        if choice is not None and choice.step == best and choice.step >= kept:
            self._receive(group, choice)
        elif load() and max(self.step, self.passed_over) >= min_step:
            kept = self.step
            if best > kept:
                log.warning("parts of the state of step %d are lost: going back to step %d", best, kept)
        elif choice is not None and best <= 0 and min_step <= 0:
            self._receive(group, choice)
        else:
            raise CheckpointMissing(_what_is_missing(best, min_step))
        group.gathered(torch.ones(1))  # all have it: what was held before is worth nothing any more
        self._group = group
        self.entered_at, self.kept_step = self.step, kept
        self._holding = self._fresh or Holding(FRESH, group.generation, 0, self._holding.description)
        self.mark_agreed()

    def like(self, name: str, shape: tuple[int, ...]) -> DTensor | None:
        """The parameter that a tensor of the state, known by its name and shape, is cut like."""
        kind, _, rest = name.partition(".")
        found = self._aliases.get(rest) if kind == "model" else None
        if kind == "optimizer" and rest.startswith("state."):
            number = rest.split(".")[1]
            order = [parameter for group in self._order for parameter in group]
            found = self._parameters[order[int(number)]] if number.isdigit() and int(number) < len(order) else None
        return found if isinstance(found, DTensor) and tuple(found.shape) == tuple(shape) else None

    def _receive(self, group: Group, choice: Choice) -> None:
        description = describe(group, choice, self._holding)
        tensors = transfer(group, self._mesh, choice, description, self._holding, self.like, self._mesh_device)
        self.adopt(unpack(description.text, tensors))

    def _dress(self, group: Group) -> None:
        self._mesh = group.mesh()
        self._parameters = self._dressing.put_on(self._mesh)
        self._aliases = dict(self._model.named_parameters(remove_duplicate=False))
        self._wire = Wire(group, self._mesh_device)
        self._wire.attach(self._dressing.sharded_modules())
        trained = [form for form in self._dressing.forms if form.trained]
        modules = [module for module in self._dressing.sharded_modules() if isinstance(module, nn.Module)]
        self._usage = Usage(trained, modules)
        self.averager.dressed({form.name: self._parameters[form.name] for form in trained}, self._usage, self._wire)
        self._optimizer.state.clear()
        for settings, names in zip(self._optimizer.param_groups, self._order, strict=True):
            settings["params"] = [self._parameters[name] for name in names]

    def _undress(self) -> None:
        """Keep this worker's part of what the model has, if it has any, and make the model a plain one."""
        if not self._dressing.on:
            return
        group, self._group = self._group, None
        if group is not None and self.step > 0:
            self._holding = held(self.state(), self.step, group.generation, group.size, group.rank)
        if self._usage is not None:
            self._usage.close()
        self._dressing.take_off()
        self._optimizer.state.clear()


def _what_is_missing(best: int, min_step: int) -> str:
    if best > 0:
        return (
            f"a worker was lost with its part of the sharded state of step {best}, and no usable checkpoint was found:"
            " give the job a checkpoint folder (spec.checkpoint) on a volume that all workers share"
        )
    return (
        f"a checkpoint of step {min_step} was committed, but no usable checkpoint was found; training does not start"
        " over by itself: check that the checkpoint volume is the same one on every worker"
    )
