"""Batch normalisation: one state on all workers, as of one process; C-118: single samples do no harm."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from rex_worker.buffers import RunningStatistics
from rex_worker.sampler import Outlook, Position, micro_batches, permutation, without_singles
from rex_worker.session import Session
from tests.worker.together import run_together

SIZE = 61


def data(seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(SIZE, 3, generator=generator).double() * 3 + 1)


def network(**norm: Any) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, **norm), nn.Tanh(), nn.Linear(4, 1)).double()


def buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def train(model: nn.Module, session: Session, steps: int = 3) -> list[dict[str, Tensor]]:
    seen = []
    with session:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        model, optimizer = session.prepare(model, optimizer)
        loader = session.loader(data())
        for _ in session.epochs(1):
            for (x,) in loader:
                optimizer.zero_grad()
                session.backward(model(x).square().mean())
                before = session.step
                optimizer.step()
                if session.step > before:
                    seen.append(buffers(model))
                if session.step == steps:
                    session.stop()
    return seen


@given(
    batches=st.lists(st.integers(1, 12), min_size=1, max_size=4).filter(lambda b: sum(b) > 1),
    passes=st.lists(st.integers(1, 4), min_size=4, max_size=4),
    norm=st.sampled_from([{}, {"momentum": 0.3}, {"momentum": None}]),
)
@settings(max_examples=20, deadline=None)
def test_all_workers_hold_the_same_statistics_after_each_step(
    batches: list[int], passes: list[int], norm: dict[str, Any]
) -> None:
    histories = run_together(batches, lambda session: train(network(**norm), session), passes[: len(batches)])
    for others in histories[1:]:
        for mine, other in zip(histories[0], others, strict=True):
            assert all(torch.equal(mine[name], other[name]) for name in mine)
    assert [int(step["1.num_batches_tracked"]) for step in histories[0]][:1] in ([1], [0])


@given(
    batches=st.lists(st.integers(2, 12), min_size=1, max_size=4),
    passes=st.lists(st.integers(1, 4), min_size=4, max_size=4),
    momentum=st.sampled_from([0.1, 0.7, None]),
)
@settings(max_examples=20, deadline=None)
def test_the_mean_is_that_of_one_process_on_the_whole_batch(
    batches: list[int], passes: list[int], momentum: float | None
) -> None:
    """The first layer normalises the input itself, so that what it sees does not depend on how it was trained."""

    def script(session: Session) -> list[dict[str, Tensor]]:
        torch.manual_seed(1)
        return train(nn.Sequential(nn.BatchNorm1d(3, momentum=momentum), nn.Linear(3, 1)).double(), session)

    history = run_together(batches, script, passes[: len(batches)])[0]
    alone, (x,) = nn.BatchNorm1d(3, momentum=momentum).double(), data().tensors
    order = torch.as_tensor(permutation(7, 0, SIZE))
    for step, batch in zip(history, torch.split(order, sum(batches)), strict=False):
        if len(batch) > 1:
            alone(x[batch])
            assert torch.allclose(step["0.running_mean"], alone.running_mean, rtol=1e-9)  # type: ignore[arg-type]
            assert int(step["0.num_batches_tracked"]) == int(alone.num_batches_tracked)  # type: ignore[arg-type]


def test_the_variance_is_the_passes_mean_by_samples() -> None:
    def script(session: Session) -> list[dict[str, Tensor]]:
        torch.manual_seed(1)
        return train(nn.Sequential(nn.BatchNorm1d(3, momentum=1.0), nn.Linear(3, 1)).double(), session, 1)

    found = run_together([9, 4], script, 2)[0][0]["0.running_var"]
    (x,) = data().tensors
    rows = torch.as_tensor(permutation(7, 0, SIZE)[:13])
    parts = torch.split(rows, [*micro_batches(9, 2), *micro_batches(4, 2)])
    expected = torch.stack([len(part) / 13 * x[part].var(0) for part in parts]).sum(0)
    assert torch.allclose(found, expected, rtol=1e-9)


def test_what_is_not_trained_keeps_its_statistics_to_the_last_bit() -> None:
    def script(session: Session) -> list[dict[str, Tensor]]:
        model = network()
        model[1].running_mean.fill_(0.1)  # type: ignore[index]
        model[1].eval()  # type: ignore[index]
        return train(model, session)

    for step in run_together([5, 3], script, 2)[1]:
        assert torch.equal(step["1.running_mean"], torch.full((4,), 0.1, dtype=torch.float64))
        assert int(step["1.num_batches_tracked"]) == 0


def test_statistics_that_a_script_spoils_between_steps_are_made_equal_by_the_next() -> None:
    def script(session: Session) -> list[dict[str, Tensor]]:
        model, seen = network(), []
        with session:
            model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))
            loader = session.loader(data())
            for _ in session.epochs(1):
                for (x,) in loader:
                    session.backward(model(x).square().mean())
                    optimizer.step()
                    seen.append(buffers(model))
                    model(torch.full((2, 3), float(session.rank)).double())  # an evaluation that forgot model.eval()
        return seen

    first, second = run_together([6, 4], script)
    for mine, other in zip(first, second, strict=True):
        assert all(torch.equal(mine[name], other[name]) for name in mine)


def test_a_void_step_leaves_the_statistics_as_they_were() -> None:
    model = network()
    statistics = RunningStatistics(model)
    statistics.agreed()
    before = buffers(model)
    statistics.begin()
    model(torch.randn(4, 3).double())
    statistics.pass_ends(0.5)
    assert all(torch.equal(buffers(model)[name], value) for name, value in before.items()), "passes start alike"
    model(torch.randn(4, 3).double())
    statistics.put_back()
    assert all(torch.equal(buffers(model)[name], value) for name, value in before.items())


def test_a_pass_that_counts_for_nothing_changes_nothing() -> None:
    model = network()
    statistics = RunningStatistics(model)
    statistics.begin()
    model(torch.randn(4, 3).double())
    statistics.pass_ends(0.0)
    assert statistics.cargo is not None and not statistics.cargo.any()


def test_half_precision_layers_are_averaged_in_single() -> None:
    model = nn.BatchNorm1d(2).to(torch.bfloat16)
    statistics = RunningStatistics(model)
    statistics.begin()
    model(torch.tensor([[0.0, 4.0], [2.0, 8.0]], dtype=torch.bfloat16))
    statistics.pass_ends(1.0)
    statistics.take_over()
    assert statistics.cargo is not None and statistics.cargo.dtype is torch.float32
    assert torch.allclose(model.running_mean.float(), torch.tensor([0.1, 0.6]), rtol=1e-2)  # type: ignore[union-attr]


@given(total=st.integers(1, 60), shares=st.lists(st.integers(1, 20), min_size=1, max_size=6))
def test_c_118_a_short_step_gives_nobody_a_single_sample_where_it_can_be_avoided(total: int, shares: list[int]) -> None:
    total = min(total, sum(shares))
    outlooks = [Outlook(Position(1), tuple(shares), rank, pairs=True) for rank in range(len(shares))]
    parts = [outlook.lay_out(total).share for outlook in outlooks]
    assert sum(parts) == total
    assert all(part <= share for part, share in zip(parts, shares, strict=True))
    if 1 in parts and total < sum(shares):
        others = [(part, share) for part, share in zip(parts, shares, strict=True) if part != 1]
        assert all(part in (0, share) for part, share in others), "all others are full or have none"
        assert parts.count(1) == 1 or max(share for part, share in zip(parts, shares, strict=True) if part == 1) == 1


def test_c_118_the_only_samples_of_two_go_to_one() -> None:
    assert without_singles([1, 1, 1], [4, 4, 4]) == [0, 3, 0]


@pytest.mark.parametrize(
    ("count", "accumulation", "ceiling", "sizes"),
    [(5, 4, None, [3, 2]), (2, 2, None, [2]), (1, 3, None, [1]), (9, 3, 2, [2, 2, 2, 2, 1]), (3, 3, None, [3])],
)
def test_c_118_no_pass_of_one_sample_is_cut(
    count: int, accumulation: int, ceiling: int | None, sizes: list[int]
) -> None:
    assert micro_batches(count, accumulation, ceiling, smallest=2) == sizes


@pytest.mark.parametrize("batches", [[2, 1, 1, 1], [1, 1, 1, 1], [12], [7, 5]])
def test_c_118_single_samples_and_short_last_steps_train(batches: list[int]) -> None:
    assert SIZE % 5 == SIZE % 4 == SIZE % 12 == 1, "the last step has one sample"
    histories = run_together(batches, lambda session: train(network(), session, 10**6))
    assert len(histories[0]) == -(-SIZE // sum(batches))
    assert all(bool(torch.isfinite(value.double()).all()) for value in histories[-1][-1].values())


def test_c_118_a_single_sample_is_normalised_with_the_running_statistics() -> None:
    model = network()
    statistics = RunningStatistics(model)
    x = torch.randn(1, 3).double()
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        copy.deepcopy(model)(x)
    statistics.begin()
    statistics.pass_begins(1)
    got = model(x)
    statistics.pass_ends(1.0)
    assert model.training and all(module.training for module in model.modules())
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        model(x)  # nothing of the help is left behind
    assert torch.equal(got, copy.deepcopy(model).eval()(x))


def test_c_118_one_image_is_no_single_value() -> None:
    model = nn.BatchNorm2d(2)
    statistics = RunningStatistics(model)
    statistics.begin()
    statistics.pass_begins(1)
    model(torch.randn(1, 2, 4, 4))
    assert int(model.num_batches_tracked or 0) == 1, "its pixels have a mean of their own"
    statistics.pass_ends(1.0)
