"""One rank of a group that takes many random steps with a sharded model and compares each gradient with one process's.

RANK, SIZE, PORT: of the group; rank 0 serves the store at PORT. CASES: how many steps. Exits with 0 if all are equal.
"""

from __future__ import annotations

import copy
import os
import random
from typing import Any

import torch
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from rex_worker.group import Group
from rex_worker.replica import Progress
from rex_worker.sampler import Outlook, Position
from rex_worker.sharding.replica import ShardedReplica
from rex_worker.store import PatientStore

RANK, SIZE, CASES = int(os.environ["RANK"]), int(os.environ["SIZE"]), int(os.environ["CASES"])


class Net(nn.Module):
    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        width = chance.randint(1, 9)
        self.first = nn.Linear(4, width)
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=chance.random() < 0.5) for _ in range(3))
        self.scale = nn.Parameter(torch.ones(1))
        self.never = nn.Linear(width, 2)
        self.last = nn.Linear(width, 1)
        if chance.random() < 0.5:
            self.layers[2].weight = self.layers[0].weight  # tied, within the root's parameters
        if chance.random() < 0.3:
            self.layers[1].requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x)) * self.scale
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden)) + hidden
        out: torch.Tensor = self.last(hidden)
        return out


def policy_of(chance: random.Random) -> Any:
    chosen = [name for name in ("first", "layers.1", "never", "last") if chance.random() < 0.5]
    keep = chance.random() < 0.5

    def policy(model: nn.Module, mesh: Any) -> None:
        for name in chosen:
            fully_shard(model.get_submodule(name), mesh=mesh, reshard_after_forward=keep)
        fully_shard(model, mesh=mesh)

    return policy


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return float((found - expected).norm()) <= 1e-6 * float(expected.norm())


def one(number: int, group: Group) -> None:
    chance = random.Random(number)
    torch.manual_seed(number)
    model = Net(chance).double()
    alone = copy.deepcopy(model)
    shares = [chance.randint(0, 12) for _ in range(SIZE)]
    shares[chance.randrange(SIZE)] += 1
    accumulation = chance.randint(1, 4)
    x, y = torch.randn(sum(shares), 4).double(), torch.randn(sum(shares), 1).double()
    (alone(x) - y).square().mean().backward()

    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    if RANK:  # whatever the others begin with, rank 0's counts
        for parameter in model.parameters():
            parameter.data.fill_(RANK)
    replica = ShardedReplica(
        model, optimizer, None, Progress(Position(0)), 100, None,
        policy=policy_of(chance), device=torch.device("cpu"), vote_numbers=1,
    )  # fmt: skip
    replica.synchronise(group, 0, lambda: False, torch.device("cpu"))
    averager = replica.averager
    averager.reset()
    ceiling = averager.common_ceiling(group, chance.choice([None, 2, 5]))
    layout = Outlook(Position(0), tuple(shares), RANK, accumulation, ceiling, together=True).lay_out(sum(shares))
    for part in layout.passes:
        rows = slice(part.start, part.stop)
        loss = (model(x[rows]) - y[rows]).square().mean()
        weight = 0.0 if part.filler else len(part) / layout.total
        torch.autograd.backward(loss, torch.full_like(loss, weight))
        averager.pass_ends(weight)
    averager.complete(group)
    local = averager.local_square(shares[RANK] / layout.total)
    averager.launch(group, [RANK / 7])
    assert averager.votes(group) == [[rank / 7] for rank in range(SIZE)]
    square = averager.finish()
    expected = [(name, p.grad) for name, p in alone.named_parameters()]
    whole = torch.cat([grad.flatten() for _, grad in expected if grad is not None])
    assert close(torch.tensor(square), whole.square().sum()), (number, square)
    limit = 0.5 * square**0.5
    averager.clip(limit)
    for (name, parameter), (_, grad) in zip(model.named_parameters(), expected, strict=True):
        if grad is None:
            assert parameter.grad is None, (number, name, "nobody used it")
        else:
            assert isinstance(parameter.grad, DTensor), (number, name)
            assert close(parameter.grad.full_tensor(), grad * limit / (square**0.5 + 1e-6)), (number, name)
    own = [part for part in layout.passes if not part.filler]
    if SIZE == 1:
        assert local is not None and close(torch.tensor(local), torch.tensor(square))
    elif len(own) != 1:
        assert local is None
    else:
        mine = copy.deepcopy(alone)
        mine.zero_grad()
        (mine(x[own[0].start : own[0].stop]) - y[own[0].start : own[0].stop]).square().mean().backward()
        squares = [p.grad.square().sum() for p in mine.parameters() if p.grad is not None]
        assert local is not None and close(torch.tensor(local), torch.stack(squares).sum()), number
    replica.hand_over(group, [])  # takes the dress off


def main() -> None:
    store = TCPStore("127.0.0.1", int(os.environ["PORT"]), is_master=RANK == 0, wait_for_workers=False)
    shared = PatientStore(store, lambda: False) if SIZE > 1 else None
    group = Group(1, RANK, SIZE, torch.device("cpu"), shared, 60.0, lambda: False)
    for number in range(CASES):
        one(number, group)
    group.gate("done")
    group.farewell(10)
    group.close()


if __name__ == "__main__":
    main()
