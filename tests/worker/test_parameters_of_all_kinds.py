"""Tied, unused, frozen and late parameters, and losses with gradients in them, train as in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from rex_worker.errors import UsageError
from rex_worker.sampler import permutation
from rex_worker.session import Session
from tests.worker.together import run_together

SIZE = 30
Loss = Callable[[nn.Module, Tensor, int], Tensor]


class Tied(nn.Module):
    """Its output layer is its input layer's transpose; one layer is used now and then, one never."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(3, 5, bias=False)
        self.output = nn.Linear(5, 3, bias=False)
        self.decoder = nn.Linear(3, 5, bias=False)
        self.decoder.weight = self.embedding.weight
        self.sometimes = nn.Linear(5, 5)
        self.never = nn.Linear(5, 5)

    def forward(self, x: Tensor, detour: bool = False) -> Tensor:
        hidden = torch.tanh(self.embedding(x))
        hidden = hidden + self.sometimes(hidden) if detour else hidden
        out: Tensor = self.decoder(torch.tanh(self.output(hidden)))
        return out


torch.manual_seed(5)
START = Tied().double()
DATA = TensorDataset(torch.randn(SIZE, 3).double())


def plain(model: nn.Module, x: Tensor, step: int) -> Tensor:
    loss: Tensor = model(x).square().mean()
    return loss


def by_turns(model: nn.Module, x: Tensor, step: int) -> Tensor:
    loss: Tensor = model(x, detour=step % 2 == 1).square().mean()
    return loss


def freezing(model: nn.Module, x: Tensor, step: int) -> Tensor:
    """From the third step on a layer is frozen; in the fifth it thaws again."""
    model.get_parameter("output.weight").requires_grad_(step not in (2, 3))
    return plain(model, x, step)


def gradient_penalty(model: nn.Module, x: Tensor, step: int) -> Tensor:
    x = x.clone().requires_grad_()
    out = model(x)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    loss: Tensor = out.square().mean() + 0.1 * slope.square().mean()
    return loss


def looked_at_before(model: nn.Module, x: Tensor, step: int) -> Tensor:
    """The script takes gradients of its own from the same graph first."""
    loss = plain(model, x, step)
    torch.autograd.grad(loss, list(model.parameters()), retain_graph=True, allow_unused=True)
    return loss


def train(session: Session, loss_of: Loss) -> Tensor:
    with session:
        model = copy.deepcopy(START)
        model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        loader = session.loader(DATA)
        for _ in session.epochs(1):
            for (x,) in loader:
                optimizer.zero_grad()
                session.backward(loss_of(model, x, session.step))
                optimizer.step()
        assert model.never.weight.grad is None
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def alone(batch: int, loss_of: Loss) -> Tensor:
    model = copy.deepcopy(START)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step, rows in enumerate(torch.split(torch.as_tensor(permutation(7, 0, SIZE)), batch)):
        optimizer.zero_grad()
        torch.autograd.backward(loss_of(model, DATA.tensors[0][rows], step))
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("loss_of", [plain, by_turns, freezing, gradient_penalty, looked_at_before])
def test_it_trains_as_one_process(loss_of: Loss, accumulation: int) -> None:
    first, second = run_together([4, 1], lambda session: train(session, loss_of), accumulation)
    expected = alone(5, loss_of)
    assert torch.equal(first, second)
    assert float((first - expected).norm() / expected.norm()) < 1e-10


@pytest.mark.parametrize("accumulation", [1, 2])
def test_sparse_gradients_are_refused_on_all_workers(accumulation: int) -> None:
    def script(session: Session) -> None:
        with session:
            model = nn.Sequential(nn.Embedding(SIZE, 2, sparse=True), nn.Linear(2, 1))
            model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            loader = session.loader(TensorDataset(torch.arange(SIZE)))
            for _ in session.epochs(1):
                for (x,) in loader:
                    session.backward(model(x).square().mean())
                    optimizer.step()

    with pytest.raises(UsageError, match=r"'0\.weight' has a sparse gradient.*sparse=False"):
        run_together([4, 4], script, accumulation)


def test_what_was_frozen_when_it_was_prepared_must_stay_so() -> None:
    def script(session: Session) -> None:
        with session:
            model = copy.deepcopy(START)
            model.output.weight.requires_grad_(False)
            model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            loader = session.loader(DATA)
            for _ in session.epochs(1):
                for (x,) in loader:
                    model.output.weight.requires_grad_(True)
                    session.backward(model(x).square().mean())
                    optimizer.step()

    with pytest.raises(UsageError, match=r"'output\.weight' was frozen at session\.prepare"):
        run_together([4, 4], script)
