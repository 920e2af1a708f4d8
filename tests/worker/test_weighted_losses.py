"""Losses that are means over tokens: the step's gradient is that of the mean over all tokens of the global batch."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from rex_worker.averaging import GradientAverager
from rex_worker.errors import UsageError
from rex_worker.sampler import permutation
from rex_worker.session import Session
from tests.worker.together import link_of, run_together

SIZE, LENGTH = 37, 6


def texts(empty: float, seed: int = 0) -> TensorDataset:
    """Samples of unlike lengths, a share of which have no token at all."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, LENGTH + 1, (SIZE,), generator=generator)
    lengths[torch.rand(SIZE, generator=generator) < empty] = 0
    mask = torch.arange(LENGTH) < lengths[:, None]
    return TensorDataset(torch.randn(SIZE, LENGTH, 3, generator=generator).double() + lengths[:, None, None], mask)


torch.manual_seed(2)
START = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def network() -> nn.Module:
    return copy.deepcopy(START)  # threads that draw at the same time would start from unlike weights


def token_loss(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """Mean over tokens; NaN, as torch's own losses, where there are none."""
    loss: Tensor = model(x)[mask].square().mean()
    return loss


def train(session: Session, data: TensorDataset, epochs: int = 2) -> dict[str, Any]:
    losses = []
    with session:
        model = network()
        model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
        loader = session.loader(data)
        for _ in session.epochs(epochs):
            for x, mask in loader:
                optimizer.zero_grad()
                session.backward(token_loss(model, x, mask), weight=mask.sum())
                before = session.step
                optimizer.step()
                if session.step > before:
                    losses.append(session.loss)
    return {
        "weights": torch.cat([p.detach().flatten() for p in model.parameters()]),
        "losses": losses,
        "reports": link_of(session).reports,
    }


def alone(batch: int, data: TensorDataset, epochs: int = 2) -> tuple[Tensor, list[float]]:
    """What one process does, with gradients of zero for a batch that has no token."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for epoch in range(epochs):
        for rows in torch.split(torch.as_tensor(permutation(7, epoch, SIZE)), batch):
            x, mask = (tensor[rows] for tensor in data.tensors)
            optimizer.zero_grad()
            loss = token_loss(model, x, mask) if mask.any() else 0.0 * model(x).sum()
            torch.autograd.backward(loss)
            optimizer.step()
            losses.append(float(loss.detach()) if mask.any() else math.nan)
    return torch.cat([p.detach().flatten() for p in model.parameters()]), losses


@given(
    batches=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    passes=st.lists(st.integers(1, 4), min_size=4, max_size=4),
    empty=st.sampled_from([0.0, 0.4, 0.9, 1.0]),
)
@settings(max_examples=25, deadline=None)
def test_any_split_trains_as_one_process(batches: list[int], passes: list[int], empty: float) -> None:
    data = texts(empty)
    results = run_together(batches, lambda session: train(session, data), passes[: len(batches)])
    weights, losses = alone(sum(batches), data)
    for result in results:
        assert float((result["weights"] - weights).norm() / weights.norm()) < 1e-10
        assert result["losses"] == pytest.approx(losses, rel=1e-9, nan_ok=True)


def test_what_is_reported_adds_up_to_the_mean_over_tokens_and_is_finite() -> None:
    data, batches = texts(0.5), [5, 2]
    results = run_together(batches, lambda session: train(session, data, epochs=1))
    _, losses = alone(7, data, epochs=1)
    for reports, loss in zip(zip(*(result["reports"] for result in results), strict=True), losses, strict=True):
        if math.isnan(loss):
            assert all(report.loss is None for report in reports), "nobody had a token"
            continue
        known = [(r.local_batch, r.loss) for r in reports if r.loss is not None and r.local_batch]
        mean = sum(batch * value for batch, value in known) / sum(batch for batch, _ in known)
        assert mean == pytest.approx(loss, rel=1e-6)
        assert not any(report.diverged for report in reports)


def test_norms_are_of_each_workers_own_mean_scaled_to_samples() -> None:
    data = texts(0.0)
    results = run_together([4, 3], lambda session: train(session, data, epochs=1))
    rows = torch.as_tensor(permutation(7, 0, SIZE)[:7])
    tokens = data.tensors[1][rows].sum(1)
    parts, squares = (rows[:4], rows[4:]), []
    for part in parts:
        model = network()
        token_loss(model, *(tensor[part] for tensor in data.tensors)).backward()  # type: ignore[no-untyped-call]
        squares.append(sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None))
    for result, square, part, own in zip(results, squares, parts, (tokens[:4], tokens[4:]), strict=True):
        share = float(own.sum() / tokens.sum()) * 7 / len(part)
        assert result["reports"][0].local_grad_sq == pytest.approx(square * share, rel=1e-6)


def test_equal_weights_change_nothing() -> None:
    data = TensorDataset(torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(1)).double())

    def script(session: Session, weight: float | None) -> Tensor:
        with session:
            model = network()
            model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            loader = session.loader(data)
            for _ in session.epochs(1):
                for (x,) in loader:
                    session.backward(model(x).square().mean(), weight=None if weight is None else weight * len(x))
                    optimizer.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    plain = run_together([5, 3], lambda session: script(session, None), 2)[0]
    weighted = run_together([5, 3], lambda session: script(session, 1.5), 2)[0]
    assert torch.allclose(plain, weighted, rtol=1e-12)


def wrong(session: Session, *weights: Any) -> None:
    with session:
        model = network()
        model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = session.loader(TensorDataset(torch.randn(8, 3).double()))
        for _ in session.epochs(1):
            for number, (x,) in enumerate(loader):
                loss = model(x).square().mean()
                session.backward(loss, weight=weights[(session.rank + number) % len(weights)])
                optimizer.step()


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_a_weight_that_cannot_be_a_count_is_refused(weight: float) -> None:
    with pytest.raises(UsageError, match=r"weight is .*counts units"):
        run_together([8], lambda session: wrong(session, weight))


def test_a_step_is_weighted_as_a_whole_or_not_at_all() -> None:
    with pytest.raises(UsageError, match="for every batch or for none"):
        run_together([8], lambda session: wrong(session, 3.0, None), 2)
    with pytest.raises(UsageError, match=r"some workers call session\.backward\(loss, weight=\.\.\.\)"):
        run_together([4, 4], lambda session: wrong(session, 3.0, None))


def test_where_all_run_each_pass_together_a_loss_over_nothing_must_be_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GradientAverager, "together", True)  # as with a sharded model
    with pytest.raises(UsageError, match=r"divide the sum of the losses by max\(units, 1\)"):
        run_together([3, 2], lambda session: train(session, texts(1.0)))
