"""What a script hands over for the training: checked at once, and made ready when the training begins.

A script may still change its mind between ``session.prepare`` and its first epoch (load weights, say), and where the
training's state begins is known only then. So the façades that the script gets back come first, and what holds and
averages the model's parameters is made at the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.amp import GradScaler
from torch.optim import Optimizer

from rex_worker.agreement import VOTE_NUMBERS
from rex_worker.averaging import Averager, GradientAverager
from rex_worker.ddp import check_model, wire_type
from rex_worker.errors import UsageError
from rex_worker.gate import StepGate
from rex_worker.optimizer import ElasticOptimizer, ElasticScheduler
from rex_worker.rates import Rates
from rex_worker.replica import Progress, Replica, Stateful
from rex_worker.scaler import ElasticScaler

if TYPE_CHECKING:
    from rex_worker.sharding import ShardPolicy


@dataclass(frozen=True)
class Prepared:
    """A model, its optimiser and what goes with them; ``handed_back`` is what the script goes on with."""

    model: torch.nn.Module
    optimizer: Optimizer
    scheduler: Any
    shard: ShardPolicy | None
    scaler: ElasticScaler | None
    wire: torch.dtype | None
    handed_back: tuple[Any, ...]

    @classmethod
    def take(
        cls,
        gate: StepGate,
        device: torch.device,
        model: torch.nn.Module,
        optimizer: Optimizer,
        scheduler: Any,
        schedule_clock: str,
        shard: ShardPolicy | None,
        scaler: GradScaler | None,
        comm_hook: Any,
    ) -> Self:
        """Check what ``session.prepare`` was given. Raises ``UsageError``."""
        if schedule_clock not in ("samples", "updates"):
            raise UsageError(f"session.prepare: schedule_clock is {schedule_clock!r}; it is 'samples' or 'updates'")
        check_model(model)
        wire = wire_type(comm_hook)
        if shard is None:
            model.to(device)
        else:
            _check_shard(model, scaler, comm_hook, device)
        known = {id(parameter) for parameter in model.parameters()}
        if any(id(p) not in known for group in optimizer.param_groups for p in group["params"]):
            raise UsageError("the optimizer holds parameters that are not the model's; they would not be averaged")
        wrapped = ElasticOptimizer(optimizer, gate)
        handed_back: list[Any] = [model, wrapped]
        if scheduler is not None:
            handed_back.append(ElasticScheduler(scheduler, gate, by_updates=schedule_clock == "updates"))
        elastic = None if scaler is None else ElasticScaler(scaler, wrapped, gate)
        if elastic is not None:
            handed_back.append(elastic)
        return cls(model, optimizer, scheduler, shard, elastic, wire, tuple(handed_back))

    def hold(
        self, progress: Progress, dataset_size: int, rates: Rates, device: torch.device
    ) -> tuple[Replica, Averager]:
        """Make what keeps the state alike on all workers, and what averages its gradients."""
        extras: dict[str, Stateful] = {"rates": rates}
        if self.scaler is not None:
            extras["scaler"] = self.scaler
        state = (self.model, self.optimizer, self.scheduler, progress, dataset_size, extras)
        if self.shard is None:
            replica = Replica(*state)
            cargo, named = replica.statistics.cargo, self.model.named_parameters()
            return replica, GradientAverager(named, VOTE_NUMBERS, cargo=cargo, wire=self.wire)
        from rex_worker.sharding.replica import ShardedReplica

        sharded = ShardedReplica(*state, policy=self.shard, device=device, vote_numbers=VOTE_NUMBERS)
        return sharded, sharded.averager


def _check_shard(model: torch.nn.Module, scaler: GradScaler | None, comm_hook: Any, device: torch.device) -> None:
    from rex_worker.sharding.preparing import prepare_to_shard

    if scaler is not None:
        raise UsageError("session.prepare: a GradScaler does not go with shard; train in bfloat16, without one")
    if comm_hook is not None:
        raise UsageError(
            "session.prepare: comm_hook does not go with shard; give fully_shard a MixedPrecisionPolicy with the"
            " reduce_dtype"
        )
    prepare_to_shard(model, device)
