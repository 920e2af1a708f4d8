"""Put ``fully_shard`` on a model, take it off again, and put it on anew for another group.

FSDP2 changes a module in place: its class, its hooks, some attributes, and its parameters, which become DTensors on
the group's mesh. torch has no way back. But an elastic job changes its group within one process, and the script keeps
its own references to the model and its layers, so that building another model would not do. Hence the way back is
here: what ``fully_shard`` added is known by comparing each module before and after (class, attributes), and its hooks
by the package that their code comes from. Nothing of FSDP2's inner workings is used but that, and one entry in a
private table of torch (``_module_state_mapping``), without which a module cannot be sharded a second time.

Every parameter goes through the meta device in between: FSDP2 then only computes shapes, and no worker ever needs room
for more than its own part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, Shard

from rex_worker.errors import UsageError

ShardPolicy = Callable[[nn.Module, DeviceMesh], Any]
"""Applies ``fully_shard(part, mesh=mesh)`` to the parts of a model, and last to the model itself."""

_FSDP = "torch.distributed.fsdp"
_NEEDED = (
    "set_custom_all_gather",
    "set_custom_reduce_scatter",
    "set_gradient_divide_factor",
    "set_force_sum_reduction_for_comms",
    "set_reduce_scatter_unused_params",
)


@dataclass(frozen=True)
class Slot:
    """Where a parameter is registered; a tied one has several."""

    module: nn.Module
    name: str


@dataclass(frozen=True)
class Form:
    """What is known of a parameter without its values."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    trained: bool
    slots: tuple[Slot, ...]

    def parameter(self) -> nn.Parameter:
        """What is registered now: the sharded one, or the gathered one while its module computes."""
        return self.slots[0].module.get_parameter(self.slots[0].name)

    def register(self, parameter: nn.Parameter) -> None:
        """Put ``parameter`` in its place, or places."""
        for slot in self.slots:
            slot.module.register_parameter(slot.name, parameter)

    def blank(self) -> nn.Parameter:
        """A plain parameter without values."""
        return nn.Parameter(torch.empty(self.shape, dtype=self.dtype, device="meta"), self.trained)


class Dressing:
    """Knows a plain model's parameters, and dresses the model for one mesh after another."""

    def __init__(self, model: nn.Module, policy: ShardPolicy, device: torch.device) -> None:
        check_torch()
        self._model = model
        self._policy = policy
        self._device = device
        self.forms = _forms_of(model)
        self._plain: list[tuple[nn.Module, type, list[str]]] = []
        """Of each module while dressed: itself, its own class, and the attributes that came with the dress."""

    @property
    def on(self) -> bool:
        """Whether the model is dressed."""
        return bool(self._plain)

    def put_on(self, mesh: DeviceMesh) -> dict[str, nn.Parameter]:
        """Shard the plain model over ``mesh``; returns its parameters by name, all zeros.

        Raises:
            UsageError: The policy does not do what it must; the message says what.
        """
        for form in self.forms:
            form.register(form.blank())
        before = [(module, type(module), set(vars(module))) for module in self._model.modules()]
        self._policy(self._model, mesh)
        self._plain = [(module, kind, [key for key in vars(module) if key not in old]) for module, kind, old in before]
        self._check(mesh)
        return {form.name: self._materialise(form) for form in self.forms}

    def take_off(self) -> None:
        """Make the model a plain one again, with parameters that have no values."""
        for module, kind, added in self._plain:
            for key in added:
                vars(module).pop(key, None)
            module.__class__ = kind
            _remove_hooks(module)
            _forget(module)
        self._plain = []
        for form in self.forms:
            form.register(form.blank())

    def sharded_modules(self) -> list[FSDPModule]:
        """The modules that ``fully_shard`` was applied to."""
        return [module for module in self._model.modules() if isinstance(module, FSDPModule)]

    def _check(self, mesh: DeviceMesh) -> None:
        if not isinstance(self._model, FSDPModule):
            raise UsageError(
                "the policy given to session.prepare(..., shard=policy) must end with fully_shard(model, mesh=mesh)"
            )
        for form in self.forms:
            parameter = form.parameter()
            if not isinstance(parameter, DTensor):
                raise UsageError(
                    f"parameter {form.name!r} is not sharded: the policy given to session.prepare must apply"
                    " fully_shard to every part of the model, and leave no parameter out (ignored_params)"
                )
            if parameter.device_mesh != mesh:
                raise UsageError(
                    f"parameter {form.name!r} is sharded over another mesh; the policy given to session.prepare must"
                    " pass the mesh that it is given to each fully_shard(..., mesh=mesh)"
                )

    def _materialise(self, form: Form) -> nn.Parameter:
        blank = cast(DTensor, form.parameter())
        local = torch.zeros(blank.to_local().shape, dtype=form.dtype, device=self._device)
        parameter = nn.Parameter(as_dtensor(local, blank), form.trained)
        form.register(parameter)
        return parameter


def as_dtensor(local: Tensor, like: DTensor) -> DTensor:
    """A DTensor placed as ``like``, of whose whole ``local`` is this worker's part."""
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def cut_dim(tensor: Tensor) -> int | None:
    """The dimension that a tensor is cut along; None when this worker has all of it."""
    if not isinstance(tensor, DTensor):
        return None
    (placement,) = tensor.placements
    if isinstance(placement, Shard):
        return placement.dim
    if isinstance(placement, Replicate):
        return None
    raise UsageError(f"state of a sharded model with placement {placement} cannot be kept; only shards can")


def check_torch() -> None:
    """Raise ``UsageError`` if this torch lacks what sharding needs."""
    missing = [name for name in _NEEDED if not hasattr(FSDPModule, name)]
    if missing:
        raise UsageError(
            f"session.prepare(..., shard=...) needs a newer torch: torch {torch.__version__} has no"
            f" FSDPModule.{missing[0]}"
        )


def _forms_of(model: nn.Module) -> list[Form]:
    slots: dict[nn.Parameter, list[Slot]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                slots.setdefault(parameter, []).append(Slot(module, name))
    return [
        Form(name, parameter.shape, parameter.dtype, parameter.requires_grad, tuple(slots[parameter]))
        for name, parameter in model.named_parameters()
    ]


def _remove_hooks(module: nn.Module) -> None:
    tables = [table for key, table in vars(module).items() if "hooks" in key and isinstance(table, dict)]
    theirs = {
        number
        for table in tables
        for number, hook in table.items()
        if str(getattr(hook, "__module__", "")).startswith(_FSDP)
    }
    for table in tables:
        for number in theirs & set(table):
            del table[number]


def _forget(module: nn.Module) -> None:
    from torch.distributed import _composable_state

    _composable_state._module_state_mapping.pop(module, None)
