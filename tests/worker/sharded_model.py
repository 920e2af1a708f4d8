"""The model and the data of ``sharded_script``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard


class Numbered(torch.utils.data.Dataset[tuple[int, torch.Tensor, torch.Tensor]]):
    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(size, 8, generator=generator).double()
        self.y = self.x.sum(1, keepdim=True).sin()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return index, self.x[index], self.y[index]


class Net(nn.Module):
    """Layers of odd sizes, a tied one, one that nobody uses, one that is frozen, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 13)
        self.tied = nn.Linear(13, 13)
        self.again = nn.Linear(13, 13)
        self.again.weight = self.tied.weight
        self.never = nn.Linear(13, 3)
        self.frozen = nn.Linear(13, 12).requires_grad_(False)
        self.last = nn.Linear(12, 1)
        self.calls: torch.Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.again(torch.tanh(self.tied(torch.tanh(self.first(x))))))
        out: torch.Tensor = self.last(torch.tanh(self.frozen(hidden)))
        return out


def build(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Net().double()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return model, torch.optim.AdamW(trained, lr=3e-3, weight_decay=0.1)


def shard(model: Any, mesh: Any) -> None:
    fully_shard(model.first, mesh=mesh)
    # A weight of one row is cut by columns.
    fully_shard(model.last, mesh=mesh, shard_placement_fn=lambda parameter: Shard(parameter.dim() - 1))
    fully_shard(model, mesh=mesh)
