"""What a model must be like to be sharded, found out before any group forms."""

from __future__ import annotations

import torch
from torch import nn
from torch._dynamo.eval_frame import OptimizedModule
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from rex_worker.errors import UsageError
from rex_worker.sharding.dressing import check_torch


def prepare_to_shard(model: nn.Module, device: torch.device) -> None:
    """Check a model that is to be sharded, and move its buffers to ``device``; its parameters go there part by part.

    Raises:
        UsageError: It cannot be sharded here; the message says why.
    """
    check_torch()
    if any(isinstance(module, FSDPModule) for module in model.modules()) or any(
        isinstance(parameter, DTensor) for parameter in model.parameters()
    ):
        raise UsageError(
            "session.prepare(..., shard=policy): the model is sharded already; give it as it is built, the policy is"
            " applied for each group anew"
        )
    if any(isinstance(module, OptimizedModule) or module._compiled_call_impl is not None for module in model.modules()):
        raise UsageError(
            "session.prepare(..., shard=policy): a compiled model cannot be sharded anew for each group; leave"
            " torch.compile out"
        )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta:
            raise UsageError(
                f"session.prepare(..., shard=policy): {name!r} is on the meta device; build the model in host memory,"
                " from where each worker takes its part"
            )
        if tensor.dim() == 0 and isinstance(tensor, nn.Parameter):
            raise UsageError(f"parameter {name!r} is a single number without a dimension to shard; give it shape (1,)")
    for buffer in model.buffers():
        buffer.data = buffer.data.to(device)
