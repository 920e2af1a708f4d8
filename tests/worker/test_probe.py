"""Trying a micro-batch out between two steps: what it finds, and that it leaves no trace."""

from __future__ import annotations

import copy
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from rex_worker.guard import Call, ForwardGuard
from rex_worker.memory import NoMeter
from rex_worker.probe import Replay, predict

CPU = torch.device("cpu")
GIB = 2**30


class Kept:
    """A tensor for as long as the graph has it."""

    def __init__(self, meter: SavedTensors, tensor: Tensor) -> None:
        self.meter, self.tensor = meter, tensor

    def __del__(self) -> None:
        self.meter.let_go(self.tensor.nbytes)


class SavedTensors:
    """Measures on the CPU what a device's meter would: the bytes that autograd keeps for the backward pass."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._kept = 0
        self._peak = 0
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda kept: kept.tensor)

    def _pack(self, tensor: Tensor) -> Kept:
        self._kept += tensor.nbytes
        self._peak = max(self._peak, self._kept)
        return Kept(self, tensor)

    def let_go(self, size: int) -> None:
        self._kept -= size

    def __enter__(self) -> SavedTensors:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    def restart(self) -> None:
        self._peak = self._kept

    def used(self) -> int:
        return self._kept

    def peak(self) -> int:
        return self._peak

    def room(self) -> int:
        return self.total


class Net(nn.Module):
    def __init__(self, limit: int = 10**9) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.limit = limit
        self.layers = nn.Sequential(nn.Linear(4, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Dropout(0.3), nn.Linear(64, 3))

    def forward(self, x: Tensor, scale: float = 1.0) -> tuple[Tensor, None]:
        if len(x) > self.limit:
            torch.empty(2**60, dtype=torch.uint8)
        return self.layers(x) * scale, None


def real_step(guard: ForwardGuard, samples: int) -> Call:
    """A forward and backward pass as a step makes them, with a gradient that stays."""
    x = torch.randn(samples, 4)
    out, _ = guard(x, scale=2.0)
    torch.autograd.backward(out.square().mean())
    return Call((x,), {"scale": 2.0}, samples, CPU)


def test_a_trial_leaves_no_trace() -> None:
    model = Net()
    guard = ForwardGuard(model, CPU, NoMeter())
    optimizer = torch.optim.Adam(model.parameters())
    call = real_step(guard, 8)
    fired: list[Tensor] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(fired.append)  # type: ignore[no-untyped-call]
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    state, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    with SavedTensors(GIB) as meter:
        assert Replay(guard, CPU, meter).needs(call, 40) > 0
    assert not fired, "the averaging of gradients must not take notice"
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    after = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(after) == len(gradients)
    assert all(torch.equal(old, new) for old, new in zip(gradients, after, strict=True))
    assert not optimizer.state


def recorded(room_at: float, now: int = 8, wanted: int = 64, limit: int = 10**9) -> str | None:
    """Try ``wanted`` samples out on a device that has ``room_at`` times what they need."""
    model = Net(limit)
    guard = ForwardGuard(model, CPU, NoMeter())
    with SavedTensors(10**12) as meter:
        real_step(guard, wanted if limit > wanted else now)
        meter.total = int(meter.peak() * room_at)
        replay = Replay(guard, CPU, meter)
        assert replay.verdict(wanted) is None and guard.recording
        replay.try_out()
        assert replay.verdict(wanted) is None, "no step has been recorded yet"
        meter.restart()
        guard.recorded = real_step(guard, now)
        replay.try_out()
        assert not guard.recording and guard.recorded is None, "inputs are kept for one step only"
        return replay.verdict(wanted)


def test_c_171_a_size_that_leaves_too_little_free_does_not_fit() -> None:
    assert recorded(room_at=1.3) == ""
    assert recorded(room_at=1.1) == "", "5 % must stay free"
    for room_at in (1.02, 0.9, 0.3):
        answer = recorded(room_at=room_at)
        assert answer is not None and "GiB can be had" in answer


def test_a_size_that_fails_in_the_trial_does_not_fit() -> None:
    answer = recorded(room_at=9.0, limit=30)
    assert answer is not None and "can't allocate memory" in answer


def test_a_trial_that_breaks_for_another_reason_says_nothing_against_the_size() -> None:
    class Fixed(Net):
        def forward(self, x: Tensor, scale: float = 1.0) -> tuple[Tensor, None]:
            return super().forward(x.view(8, 4), scale)

    model = Fixed()
    guard = ForwardGuard(model, CPU, NoMeter())
    with SavedTensors(10**12) as meter:
        replay = Replay(guard, CPU, meter)
        assert replay.verdict(10) is None
        guard.recorded = real_step(guard, 8)
        meter.total = int(meter.peak() * 1.4)
        replay.try_out()
        assert replay.verdict(10) == ""


@given(
    resident=st.integers(0, 10 * GIB),
    grows=st.integers(0, 10 * GIB),
    gradients=st.integers(0, 20 * GIB),
    samples=st.integers(1, 512),
    more=st.integers(1, 4096),
)
def test_a_prediction_bounds_what_is_linear_in_the_samples(
    resident: int, grows: int, gradients: int, samples: int, more: int
) -> None:
    peak, wanted = resident + grows, samples + more
    foreseen = predict(resident, peak, gradients, samples, wanted)
    assert peak - 1 <= foreseen.low <= foreseen.high + 1
    for fixed in (0, min(gradients, grows) // 2, min(gradients, grows)):
        truth = resident + fixed + (grows - fixed) * wanted / samples
        assert foreseen.low - 1 <= truth <= foreseen.high + 1
