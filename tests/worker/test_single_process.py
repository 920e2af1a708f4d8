"""Without an operator the same script trains in one process, with the same results as plain PyTorch."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import rex_worker as rex
from rex_worker.errors import ConfigurationError, RexError, UsageError
from rex_worker.sampler import permutation

pytestmark = pytest.mark.usefixtures("alone")


DATA = TensorDataset(torch.randn(103, 4), torch.randn(103, 1))


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


def train(epochs: int, stop_at: int | None = None) -> tuple[nn.Module, list[int]]:
    model, optimizer, scheduler = model_and_optimizer()
    seen = []
    with rex.init() as session:
        model, optimizer, scheduler = session.prepare(model, optimizer, scheduler)
        loader = session.loader(DATA, batch_size=16)
        for epoch in session.epochs(epochs):
            seen.append(epoch)
            for x, y in loader:
                optimizer.zero_grad()
                session.backward(nn.functional.mse_loss(model(x), y))
                optimizer.step()
                if session.step == stop_at:
                    session.stop()
            scheduler.step()
            session.report(loss=session.loss)
    return model, seen


def plain(epochs: int) -> nn.Module:
    model, optimizer, scheduler = model_and_optimizer()
    for epoch in range(epochs):
        batches = torch.split(torch.as_tensor(permutation(5, epoch, len(DATA))), 16)
        for x, y in DataLoader(DATA, batch_sampler=[batch.tolist() for batch in batches]):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.mse_loss(model(x), y))
            optimizer.step()
        scheduler.step()
    return model


def same(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in pairs)


def test_it_ends_with_the_weights_of_plain_pytorch() -> None:
    model, seen = train(3)
    assert seen == [0, 1, 2]
    assert same(model, plain(3))


def test_it_resumes_from_its_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REX_CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setenv("REX_CHECKPOINT_EVERY", "5")
    with pytest.raises(RuntimeError, match="power cut"), rex.init() as session:
        model, optimizer, scheduler = session.prepare(*model_and_optimizer())
        loader = session.loader(DATA, batch_size=16)
        for _ in session.epochs(3):
            for x, y in loader:
                session.backward(nn.functional.mse_loss(model(x), y))
                optimizer.step()
                if session.step == 12:
                    raise RuntimeError("power cut")
            scheduler.step()
    model, seen = train(3)
    assert seen == [1, 2], "from step 10, in the second epoch"
    assert same(model, plain(3))
    _, seen = train(3)
    assert seen == [], "all is done already"


def test_c_120_a_checkpoint_of_other_data_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REX_CHECKPOINT_DIR", str(tmp_path))
    train(1)
    with pytest.raises(RexError, match="was trained on 103 samples, this script has a stream"), rex.init() as session:
        session.prepare(*model_and_optimizer())
        session.loader(Stream())
        next(session.epochs(3))


def test_it_can_stop_early() -> None:
    _, seen = train(100, stop_at=9)
    assert seen == [0, 1], "the step in which everybody hears of it is the last"


def test_gradients_are_clipped_on_the_whole_step() -> None:
    model, optimizer, _ = model_and_optimizer()
    with rex.init() as session:
        model, optimizer = session.prepare(model, optimizer)
        loader = session.loader(DATA, batch_size=50)
        for _ in session.epochs(1):
            for x, y in loader:
                session.backward(1000 * nn.functional.mse_loss(model(x), y))
                session.clip_gradients(0.5)
                norm = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()
                assert float(norm) == pytest.approx(0.5, rel=1e-4)
                optimizer.step()


def test_low_precision_losses_keep_exact_weights() -> None:
    model = nn.Linear(4, 1).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with rex.init() as session:
        model, optimizer = session.prepare(model, optimizer)
        loader = session.loader(DATA, batch_size=103)
        for _ in session.epochs(1):
            for x, y in loader:
                expected = copy.deepcopy(model)
                torch.autograd.backward(nn.functional.mse_loss(expected(x.bfloat16()), y.bfloat16()))
                session.backward(nn.functional.mse_loss(model(x.bfloat16()), y.bfloat16()))
                assert model.weight.grad is not None and expected.weight.grad is not None
                assert torch.equal(model.weight.grad, expected.weight.grad)
                optimizer.step()


def test_figures_that_are_no_numbers_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(UsageError), rex.init() as session:
        session.report(accuracy=float("nan"), loss=1.0)
    assert "accuracy is nan" in caplog.text


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield 1


def test_wrong_calls_say_what_to_do() -> None:
    model, optimizer, _ = model_and_optimizer()
    stranger = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    wrong: list[tuple[str, Any]] = [
        ("belongs inside the loop|has not begun", lambda s: s.backward(torch.ones(()))),
        ("not the model's", lambda s: s.prepare(model, stranger)),
        ("cannot read a int", lambda s: s.loader(3)),
        ("can be read only once", lambda s: s.loader(iter([1, 2]))),
        ("a stream is read in its own order", lambda s: s.loader(Stream(), shuffle=True)),
        ("the dataset is empty", lambda s: s.loader([])),
        ("batch_size is 0", lambda s: s.loader(DATA, batch_size=0)),
        (r"call session.prepare\(model, optimizer\) before", lambda s: next(s.epochs(1))),
        (r"session.epochs\(0\)", lambda s: next(s.epochs(0))),
        ("at most 16 figures", lambda s: s.report(**{f"f{i}": 1.0 for i in range(17)})),
    ]
    for words, call in wrong:
        with pytest.raises(UsageError, match=words), rex.init() as session:
            call(session)
    with pytest.raises(UsageError, match="a session trains one model"), rex.init() as session:
        session.prepare(model, optimizer)
        session.prepare(model, optimizer)


def test_gradients_cleared_behind_the_optimizers_back_are_noticed() -> None:
    model, optimizer, _ = model_and_optimizer()
    with pytest.raises(UsageError, match="gradients of the step's earlier batches are gone"), rex.init() as session:
        model, optimizer = session.prepare(model, optimizer)
        loader = session.loader(DATA, batch_size=16)
        for _ in session.epochs(1):
            session._running()._headroom._failed = 16  # as after running out of memory: two passes per step
            for x, y in loader:
                model.zero_grad()
                session.backward(nn.functional.mse_loss(model(x), y))
                optimizer.step()


def test_an_unknown_emulated_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REX_EMULATE", "1")
    monkeypatch.setenv("REX_DEVICE", "abacus")
    with pytest.raises(ConfigurationError, match="no profile of a device 'abacus'; known are a100"):
        rex.init()
