"""Promise 1: for any split, accumulation and world size the gradient is that of one process on the whole batch."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rex_worker.averaging import GradientAverager
from rex_worker.errors import UsageError
from rex_worker.sampler import micro_batches


class Exchange:
    """Stands for a group in one process: sums the buckets that all ranks have handed in."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self.calls: list[Tensor] = []

    def all_reduce(self, tensor: Tensor) -> Any:
        self.calls.append(tensor)
        return self


def total(exchanges: list[Exchange]) -> None:
    counts = {len(exchange.calls) for exchange in exchanges}
    assert len(counts) == 1, "all ranks send the same number of buckets"
    for buckets in zip(*(exchange.calls for exchange in exchanges), strict=True):
        assert len({bucket.shape for bucket in buckets}) == 1
        summed = torch.stack(list(buckets)).sum(0)
        for bucket in buckets:
            bucket.copy_(summed)


class Net(nn.Module):
    """Has a shared layer, a layer that some inputs leave out, and one that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.shared = nn.Linear(6, 6)
        self.sometimes = nn.Linear(6, 6)
        self.never = nn.Linear(6, 6)
        self.last = nn.Linear(6, 1)

    def forward(self, x: Tensor, detour: bool = True) -> Tensor:
        hidden = torch.tanh(self.shared(torch.tanh(self.shared(torch.tanh(self.first(x))))))
        if detour:
            hidden = hidden + self.sometimes(hidden)
        out: Tensor = self.last(hidden)
        return out


def averaged(
    model: Net, x: Tensor, y: Tensor, batches: list[int], accumulation: list[int], overlap: bool, bucket_bytes: int
) -> tuple[list[Net], list[float | None], float]:
    """Run a step on as many replicas as there are batches; returns them with their gradients, and the norms."""
    replicas = [copy.deepcopy(model) for _ in batches]
    exchanges = [Exchange(rank, len(batches)) for rank in range(len(batches))]
    averagers = [GradientAverager(replica.named_parameters(), 1, bucket_bytes) for replica in replicas]
    size, start, locals_sq = len(x), 0, []
    for replica, exchange, averager, batch, passes in zip(
        replicas, exchanges, averagers, batches, accumulation, strict=True
    ):
        edges = np.cumsum(micro_batches(batch, passes))[:-1]
        mine = np.split(np.arange(start, start + batch), edges) if batch else []
        start += batch
        for number, part in enumerate(mine):
            if overlap and number == len(mine) - 1:
                averager.arm(exchange)
            loss = (replica(x[part]) - y[part]).square().mean()
            torch.autograd.backward(loss, torch.full_like(loss, len(part) / size))
        averager.complete(exchange)
        locals_sq.append(averager.local_square(batch / size))
        averager.launch(exchange, [batch / 7])
    total(exchanges)
    for averager, exchange in zip(averagers, exchanges, strict=True):
        assert averager.votes(exchange) == [[batch / 7] for batch in batches], "votes arrive whole, behind gradients"
    norms = [averager.finish() for averager in averagers]
    assert len(set(norms)) == 1
    return replicas, locals_sq, norms[0]


@given(
    seed=st.integers(0, 2**31),
    batches=st.lists(st.integers(0, 33), min_size=1, max_size=5).filter(any),
    accumulation=st.integers(1, 5),
    double=st.booleans(),
    overlap=st.booleans(),
    bucket_bytes=st.sampled_from([1, 200, 1 << 20]),
)
@settings(max_examples=120, deadline=None)
def test_the_averaged_gradient_is_that_of_one_process(
    seed: int, batches: list[int], accumulation: int, double: bool, overlap: bool, bucket_bytes: int
) -> None:
    torch.manual_seed(seed)
    dtype, tolerance = (torch.float64, 1e-6) if double else (torch.float32, 1e-5)
    model = Net().to(dtype)
    x, y = torch.randn(sum(batches), 4, dtype=dtype), torch.randn(sum(batches), 1, dtype=dtype)
    alone = copy.deepcopy(model)
    (alone(x) - y).square().mean().backward()
    whole = torch.cat([p.grad.flatten() for p in alone.parameters() if p.grad is not None])

    passes = [accumulation + rank for rank in range(len(batches))]
    replicas, _, norm_sq = averaged(model, x, y, batches, passes, overlap, bucket_bytes)
    for replica in replicas:
        mine = torch.cat([p.grad.flatten() for p in replica.parameters() if p.grad is not None])
        assert float((mine - whole).norm() / whole.norm()) < tolerance
        assert replica.never.weight.grad is None, "what nobody used has no gradient, as in one process"
    assert norm_sq == pytest.approx(float(whole.double().square().sum()), rel=1e-4)


def test_c_101_no_mean_of_means() -> None:
    torch.manual_seed(0)
    model = Net().double()
    x = torch.cat([torch.randn(96, 4) * 3 + 1, torch.randn(32, 4) - 2]).double()
    y = torch.cat([torch.randn(96, 1), torch.randn(32, 1) * 5]).double()
    (model(x) - y).square().mean().backward()
    whole = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    (replica, _), locals_sq, _ = averaged(model, x, y, [96, 32], [1, 1], True, 1 << 20)
    mine = torch.cat([p.grad.flatten() for p in replica.parameters() if p.grad is not None])
    assert float((mine - whole).norm() / whole.norm()) < 1e-6

    own = copy.deepcopy(model)
    (own(x[:96]) - y[:96]).square().mean().backward()
    expected = sum(float(p.grad.square().sum()) for p in own.parameters() if p.grad is not None)
    assert locals_sq[0] == pytest.approx(expected), "the norm is of this worker's own mean gradient"


def test_a_parameter_used_on_one_rank_only_is_averaged_for_all() -> None:
    torch.manual_seed(1)
    model = Net()
    replicas = [copy.deepcopy(model), copy.deepcopy(model)]
    exchanges = [Exchange(0, 2), Exchange(1, 2)]
    averagers = [GradientAverager(replica.named_parameters(), 1, 1) for replica in replicas]
    for replica, exchange, averager, detour in zip(replicas, exchanges, averagers, [True, False], strict=True):
        averager.arm(exchange)
        torch.autograd.backward(replica(torch.ones(2, 4), detour).mean(), torch.tensor(0.5))
        averager.complete(exchange)
        averager.launch(exchange, [0.0])
    total(exchanges)
    for averager in averagers:
        averager.finish()
    first, second = (replica.sometimes.weight.grad for replica in replicas)
    assert first is not None and second is not None and torch.equal(first, second) and first.abs().sum() > 0
    assert replicas[1].never.weight.grad is None


def test_a_step_given_up_leaves_nothing_behind() -> None:
    torch.manual_seed(2)
    model = nn.Linear(3, 1)
    averager, exchange = GradientAverager(model.named_parameters(), 1), Exchange()
    averager.arm(exchange)
    model(torch.ones(2, 3)).mean().backward()
    averager.complete(exchange)
    averager.launch(exchange, [0.0])
    in_flight = exchange.calls[0]
    averager.reset()
    assert model.weight.grad is None
    torch.autograd.backward(model(torch.ones(2, 3)).mean(), torch.tensor(1.0))
    averager.complete(exchange)
    averager.launch(exchange, [0.0])
    in_flight.fill_(1e9)  # a late collective of the step that was given up
    averager.finish()
    assert model.weight.grad is not None and torch.allclose(model.weight.grad, torch.ones(1, 3))


def test_sparse_gradients_are_refused_by_name() -> None:
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1))
    averager = GradientAverager(model.named_parameters(), 1)
    averager.arm(Exchange())
    with pytest.raises(UsageError, match=r"parameter '0.weight' has a sparse gradient.*sparse=False"):
        model(torch.tensor([1, 2])).mean().backward()


def test_a_second_backward_in_the_last_pass_is_refused() -> None:
    model = nn.Linear(3, 1)
    averager = GradientAverager(model.named_parameters(), 1)
    averager.arm(Exchange())
    model(torch.ones(2, 3)).mean().backward()
    with pytest.raises(UsageError, match=r"session.backward once per batch"):
        model(torch.ones(2, 3)).mean().backward()


def test_a_parameter_that_thaws_later_is_refused() -> None:
    model = nn.Linear(3, 1)
    model.bias.requires_grad_(False)
    averager = GradientAverager(model.named_parameters(), 1)
    model.bias.requires_grad_(True)
    model(torch.ones(2, 3)).mean().backward()
    with pytest.raises(UsageError, match=r"parameter 'bias' was frozen at session.prepare"):
        averager.complete(Exchange())
