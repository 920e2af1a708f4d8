"""What a script that comes from ``DistributedDataParallel`` brings along, and what becomes of it.

REX averages gradients by itself, as workers have unlike shares and groups change. So the wrapper must go; and of DDP's
communication hooks those can stay that only say in which type gradients travel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from rex_worker.errors import UsageError

_WIRES: dict[Any, torch.dtype | None] = {
    None: None,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    default_hooks.allreduce_hook: None,
    default_hooks.fp16_compress_hook: torch.float16,
    default_hooks.bf16_compress_hook: torch.bfloat16,
}


def check_model(model: nn.Module) -> None:
    """Refuse what talks to other workers by itself.

    Raises:
        UsageError: The model is wrapped for data-parallel training, or has a ``SyncBatchNorm``.
    """
    for name, module in model.named_modules():
        where = name or "the model"
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise UsageError(
                f"{where} is wrapped in DistributedDataParallel, which averages over ranks and cannot change its group:"
                " give session.prepare the plain model (model.module), and drop init_process_group; a communication"
                " hook goes to session.prepare(..., comm_hook=...)"
            )
        if isinstance(module, nn.SyncBatchNorm):
            raise UsageError(
                f"{where} is a SyncBatchNorm, which waits for all workers in each forward pass; under REX their numbers"
                " of passes differ: use BatchNorm, whose running statistics are averaged, or GroupNorm"
            )


def wire_type(comm_hook: Any) -> torch.dtype | None:
    """Type that gradients are to travel in; None: their own.

    Args:
        comm_hook: ``"fp16"``, ``"bf16"``, torch's own hook of that kind, or None.

    Raises:
        UsageError: A hook that does more than that.
    """
    try:
        return _WIRES[comm_hook]
    except (KeyError, TypeError):
        raise UsageError(
            f"session.prepare: comm_hook={getattr(comm_hook, '__name__', comm_hook)!r} cannot be combined with unlike"
            " shares; REX knows 'fp16' and 'bf16' (also as torch's fp16_compress_hook and bf16_compress_hook)"
        ) from None
