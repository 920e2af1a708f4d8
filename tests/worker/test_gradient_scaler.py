"""Mixed precision: a gradient scaler in the loop acts once per step, alike on all workers, as in one process."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.utils.data import TensorDataset

import rex_worker as rex
from rex_worker.errors import UsageError
from rex_worker.sampler import permutation
from rex_worker.session import Session
from tests.worker.together import link_of, run_together

SIZE = 41
torch.manual_seed(3)
START = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
DATA = TensorDataset(torch.randn(SIZE, 3).double(), torch.arange(SIZE))
INITIAL = 1024.0


def moving() -> GradScaler:
    return GradScaler("cpu", init_scale=INITIAL, growth_interval=2)


def loss_of(model: nn.Module, x: Tensor, number: Tensor, bad: int) -> Tensor:
    """Mean loss; sample ``bad`` overflows as a float16 activation would."""
    rows: Tensor = model(x).square()
    spoilt = torch.where((number == bad)[:, None], rows, 0.0) * 1e300 * 1e300
    return (rows + spoilt).mean()


def train(session: Session, bad: int = -1, clip: float | None = None, by_hand: bool = False) -> dict[str, Any]:
    scales: list[float] = []
    with session:
        model = copy.deepcopy(START)
        inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        model, optimizer, scaler = session.prepare(model, inner, scaler=moving())
        loader = session.loader(DATA)
        for _ in session.epochs(2):
            for x, number in loader:
                optimizer.zero_grad()
                session.backward(scaler.scale(loss_of(model, x, number, bad)))
                before = session.step
                if clip is not None:
                    if by_hand:
                        scaler.unscale_(optimizer)
                    session.clip_gradients(clip)
                scaler.step(optimizer)
                scaler.update()
                if session.step > before:
                    scales.append(scaler.get_scale())
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return {
        "weights": weights,
        "scales": scales,
        "samples": session.samples,
        "reports": link_of(session).reports,
        "state": scaler.state_dict(),
    }


def alone(batch: int, bad: int = -1, clip: float | None = None) -> tuple[Tensor, list[float]]:
    """PyTorch's own recipe, in one process."""
    model, scaler, scales = copy.deepcopy(START), moving(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(2):
        for rows in torch.split(torch.as_tensor(permutation(7, epoch, SIZE)), batch):
            optimizer.zero_grad()
            x, number = (tensor[rows] for tensor in DATA.tensors)
            torch.autograd.backward(scaler.scale(loss_of(model, x, number, bad)))
            if clip is not None:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
    return torch.cat([p.detach().flatten() for p in model.parameters()]), scales


@given(
    batches=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    accumulation=st.integers(1, 3),
    bad=st.integers(-1, SIZE - 1),
    clip=st.sampled_from([None, 0.1]),
    by_hand=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_any_split_trains_and_skips_as_one_process(
    batches: list[int], accumulation: int, bad: int, clip: float | None, by_hand: bool
) -> None:
    results = run_together(batches, lambda session: train(session, bad, clip, by_hand), accumulation)
    weights, scales = alone(sum(batches), bad, clip)
    for result in results:
        assert result["scales"] == scales, "the scale grows and falls at the same steps"
        assert float((result["weights"] - weights).norm() / weights.norm()) < 1e-7
        assert result["samples"] == 2 * SIZE, "a skipped step has used its samples"
        assert result["state"] == results[0]["state"]
    assert (min(scales) < INITIAL) <= (bad >= 0)


def test_what_is_reported_is_unscaled_and_finite() -> None:
    bad = int(permutation(7, 0, SIZE)[20])  # in the third step
    scaled = run_together([5, 3], lambda session: train(session, bad))
    model = copy.deepcopy(START)
    rows = torch.as_tensor(permutation(7, 0, SIZE)[:8])
    for result, part in zip(scaled, (rows[:5], rows[5:]), strict=True):
        report = result["reports"][0]
        own = copy.deepcopy(START)
        loss = own(DATA.tensors[0][part]).square().mean()
        torch.autograd.backward(loss)
        square = sum(float(p.grad.square().sum()) for p in own.parameters() if p.grad is not None)
        assert report.loss == pytest.approx(float(loss.detach()))
        assert report.local_grad_sq == pytest.approx(square, rel=1e-6)
        skipped = result["reports"][2]
        assert skipped.global_grad_sq is None and not skipped.diverged
        assert all(not r.diverged and (r.loss is None or math.isfinite(r.loss)) for r in result["reports"])
    torch.autograd.backward(model(DATA.tensors[0][rows]).square().mean())
    square = sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None)
    assert scaled[0]["reports"][0].global_grad_sq == pytest.approx(square, rel=1e-6)


def test_weighted_losses_go_with_a_scaler_even_when_there_is_nothing_to_learn_from() -> None:
    def script(session: Session) -> tuple[int, float]:
        with session:
            model = copy.deepcopy(START)
            model, optimizer, scaler = session.prepare(
                model, torch.optim.SGD(model.parameters(), lr=0.05), scaler=GradScaler("cpu")
            )
            loader = session.loader(DATA)
            for _ in session.epochs(1):
                for x, number in loader:
                    chosen = number < 5
                    session.backward(scaler.scale(model(x)[chosen].square().mean()), weight=chosen.sum())
                    scaler.step(optimizer)
                    scaler.update()
        return session.step, float(torch.cat([p.detach().flatten() for p in model.parameters()]).sum())

    results = run_together([3, 2], script, 2)
    assert results[0] == results[1] and math.isfinite(results[0][1]) and results[0][0] == 9


def test_bfloat16_autocast_trains_alike_on_all_workers() -> None:
    def script(session: Session) -> tuple[Tensor, float]:
        with session:
            model = copy.deepcopy(START).float()
            model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))
            loader = session.loader(TensorDataset(DATA.tensors[0].float()))
            for _ in session.epochs(2):
                for (x,) in loader:
                    optimizer.zero_grad()
                    with torch.autocast("cpu", torch.bfloat16):
                        loss = model(x).square().mean()
                    session.backward(loss)
                    optimizer.step()
        with torch.no_grad():
            after = float(model(DATA.tensors[0].float()).square().mean())
        return torch.cat([p.detach().flatten() for p in model.parameters()]), after

    (first, after), (second, _) = run_together([5, 3], script, 2)
    assert torch.equal(first, second)
    with torch.no_grad():
        assert after < 0.5 * float(START(DATA.tensors[0]).square().mean()), "it learns"


@pytest.fixture
def by_itself(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("REX_CHANNEL_URL", "REX_CHECKPOINT_DIR", "REX_EMULATE"):
        monkeypatch.delenv(name, raising=False)
    yield


def test_its_state_is_in_checkpoints(by_itself: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REX_CHECKPOINT_DIR", str(tmp_path))

    def run(epochs: int) -> GradScaler:
        with rex.init() as session:
            model = copy.deepcopy(START)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
            model, optimizer, scheduler, scaler = session.prepare(
                model, optimizer, scheduler, scaler=GradScaler("cpu", growth_interval=3)
            )
            loader = session.loader(DATA, batch_size=10)
            for _ in session.epochs(epochs):
                for x, number in loader:
                    session.backward(scaler.scale(loss_of(model, x, number, -1)))
                    scaler.step(optimizer)
                    scaler.update()
                scheduler.step()
        return scaler

    first = run(1)
    assert first.get_scale() == 2.0**17 and first.state_dict()["_growth_tracker"] == 2
    again = run(1)
    assert again.state_dict() == first.state_dict(), "nothing was left to train; the state came from the checkpoint"


def test_wrong_calls_say_what_to_do(by_itself: None) -> None:
    def attempt(wrong: Any) -> None:
        with rex.init() as session:
            model = copy.deepcopy(START)
            inner = torch.optim.SGD(model.parameters(), lr=0.05)
            model, optimizer, scaler = session.prepare(model, inner, scaler=GradScaler("cpu"))
            loader = session.loader(DATA)
            for _ in session.epochs(1):
                for x, number in loader:
                    wrong(session, loss_of(model, x, number, -1), scaler, optimizer, inner)

    cases: list[tuple[str, Any]] = [
        (r"session\.backward\(scaler\.scale\(loss\)\)", lambda session, loss, *_: session.backward(loss)),
        (r"directly on what scale", lambda session, loss, scaler, *_: session.backward(scaler.scale(loss) / 2)),
        (
            r"call scaler\.step\(optimizer\) in place",
            lambda session, loss, scaler, optimizer, _: (session.backward(scaler.scale(loss)), optimizer.step()),
        ),
        (
            r"give it the one from session\.prepare",
            lambda session, loss, scaler, _, inner: (session.backward(scaler.scale(loss)), scaler.step(inner)),
        ),
        (
            r"takes nothing else",
            lambda session, loss, scaler, optimizer, _: scaler.step(optimizer, closure=lambda: loss),
        ),
        (r"replace loss\.backward\(\)", lambda session, loss, scaler, optimizer, _: scaler.step(optimizer)),
    ]
    for words, wrong in cases:
        with pytest.raises(UsageError, match=words):
            attempt(wrong)


def test_a_disabled_scaler_changes_nothing() -> None:
    def script(session: Session, enabled: bool) -> Tensor:
        with session:
            model = copy.deepcopy(START)
            inner = torch.optim.SGD(model.parameters(), lr=0.05)
            model, optimizer, scaler = session.prepare(model, inner, scaler=GradScaler("cpu", enabled=enabled))
            loader = session.loader(DATA)
            for _ in session.epochs(1):
                for x, number in loader:
                    optimizer.zero_grad()
                    session.backward(scaler.scale(loss_of(model, x, number, -1)))
                    scaler.step(optimizer)
                    scaler.update()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    on = run_together([4, 3], lambda session: script(session, True), 2)[0]
    off = run_together([4, 3], lambda session: script(session, False), 2)[0]
    assert torch.allclose(on, off, rtol=1e-9)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
def test_float16_trains_on_a_gpu_as_pytorchs_recipe_does(by_itself: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REX_JOB_SEED", "7")
    batch = 8

    def loss_of_half(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.float16):
            loss: Tensor = model(x).square().mean()
        return loss

    with rex.init() as session:
        model = copy.deepcopy(START).float()
        inner = torch.optim.SGD(model.parameters(), lr=0.05)
        model, optimizer, scaler = session.prepare(model, inner, scaler=GradScaler("cuda"), comm_hook="bf16")
        loader = session.loader(TensorDataset(DATA.tensors[0].float()), batch_size=batch)
        for _ in session.epochs(1):
            for (x,) in loader:
                optimizer.zero_grad()
                session.backward(scaler.scale(loss_of_half(model, x)))
                session.clip_gradients(1.0)
                scaler.step(optimizer)
                scaler.update()
    plain, plain_scaler = copy.deepcopy(START).float().cuda(), GradScaler("cuda")
    inner = torch.optim.SGD(plain.parameters(), lr=0.05)
    for rows in torch.split(torch.as_tensor(permutation(7, 0, SIZE)), batch):
        inner.zero_grad()
        torch.autograd.backward(plain_scaler.scale(loss_of_half(plain, DATA.tensors[0][rows].float().cuda())))
        plain_scaler.unscale_(inner)
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        plain_scaler.step(inner)
        plain_scaler.update()
    assert scaler.state_dict() == plain_scaler.state_dict()
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine, other, rtol=1e-3, atol=1e-5)
