"""A larger micro-batch in the midst of a training: tried out between two steps, and then taken up, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import rex_worker as rex
from rex_worker.guard import ForwardGuard
from rex_worker.headroom import Headroom
from rex_worker.probe import Judge, Replay, Unlimited
from rex_worker.protocol import OutOfMemory, Plan
from rex_worker.rewind import Rewind
from tests.worker.test_probe import SavedTensors

DATA = TensorDataset(torch.randn(400, 4), torch.randn(400, 1))


pytestmark = pytest.mark.usefixtures("alone")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Dropout(0.2), nn.Linear(32, 1))
        self.passes: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.passes.append(len(x))
        out: Tensor = self.layers(x)
        return out


def needs(samples: int) -> int:
    """Bytes that the model keeps for the backward pass over so many samples."""
    with SavedTensors(0) as meter:
        Net()(torch.randn(samples, 4))
        return meter.peak()


class Run:
    """A training of one process that is told plans while it trains, on a device with so much ``room`` (None: any)."""

    def __init__(self, room: int | None, plans: dict[int, Plan]) -> None:
        self._room = room
        self._plans = plans
        self.model = Net()
        self.sizes: list[int] = []
        self.said: list[Any] = []

    def train(self, patch: pytest.MonkeyPatch) -> Run:
        patch.setattr("rex_worker.session.guarded", self._guarded)
        patch.setattr("rex_worker.link.AloneLink.send", lambda link, message: self.said.append(message))
        torch.manual_seed(1)
        for module in self.model.layers:
            if isinstance(module, nn.Linear):
                module.reset_parameters()
        optimizer: torch.optim.Optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        with SavedTensors(self._room or 0) as self._meter, rex.init() as session:
            model, optimizer = session.prepare(self.model, optimizer)
            loader = session.loader(DATA, batch_size=10)
            for _ in session.epochs(1):
                for x, y in loader:
                    optimizer.zero_grad()
                    if session.step in self._plans:
                        session._link.directives.receive(self._plans[session.step])
                    session.backward(nn.functional.mse_loss(model(x), y))
                    optimizer.step()
                    self.sizes.append(len(x))
        return self

    def _guarded(
        self, model: nn.Module, device: torch.device, pacer: Any, worker_id: str, link: Any, *, together: bool
    ) -> tuple[ForwardGuard, Headroom]:
        guard = ForwardGuard(model, device, self._meter)
        judge: Judge = Unlimited() if self._room is None else Replay(guard, device, self._meter)
        return guard, Headroom(worker_id, link, device, judge, self._meter, Rewind(model, device), together=together)

    def refusals(self) -> list[tuple[int, int]]:
        return [(m.plan_version, m.local_batch) for m in self.said if isinstance(m, OutOfMemory)]


def plan(version: int, batch: int, accumulation: int = 1) -> Plan:
    return Plan(
        generation=1, version=version, global_batch=batch, accumulation=accumulation, local_batches={"w0": batch}
    )


def test_what_fits_is_taken_up_after_a_trial_that_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Run(int(1.1 * needs(40)), {2: plan(2, 40)}).train(monkeypatch)
    assert tried.sizes[:7] == [10, 10, 10, 10, 10, 40, 40], "one step is recorded, then it is tried out and voted for"
    assert tried.model.passes[:8] == [10, 10, 10, 10, 10, 40, 10, 40], "both sizes are tried"
    assert not tried.refusals()
    untried = Run(None, {4: plan(2, 40)}).train(monkeypatch)
    assert untried.sizes == tried.sizes
    for name, value in tried.model.state_dict().items():
        assert torch.equal(value, untried.model.state_dict()[name]), name


def test_where_there_is_plenty_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(100 * needs(40), {2: plan(2, 40)}).train(monkeypatch)
    assert run.sizes.count(40) > 1
    assert run.model.passes == run.sizes


def test_what_does_not_fit_is_refused_once_and_something_smaller_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = {2: plan(2, 40), 8: plan(3, 40, accumulation=4), 10: plan(4, 20)}
    run = Run(int(0.9 * needs(40)), plans).train(monkeypatch)
    assert run.refusals() == [(2, 40)]
    assert 40 not in run.sizes
    assert run.sizes[:8] == [10] * 8, "the plan that runs stays"
    assert 20 in run.sizes


def test_a_smaller_or_equal_micro_batch_is_taken_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(needs(10), {2: plan(2, 20, accumulation=2), 6: plan(3, 5)}).train(monkeypatch)
    assert run.sizes[:9] == [10] * 9
    assert run.model.passes == run.sizes and not run.refusals()
    assert 5 in run.sizes
