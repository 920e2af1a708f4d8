"""A forward pass that runs out of memory: the step is taken again in smaller passes, and nothing else changes."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import rex_worker as rex
from rex_worker.guard import ForwardGuard, resized
from rex_worker.memory import NoMeter
from rex_worker.sampler import permutation

CPU = torch.device("cpu")
DATA = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))


pytestmark = pytest.mark.usefixtures("alone")


class Hungry(nn.Module):
    """Asks for more memory than any host has when it gets more than ``limit`` samples; counts its samples."""

    seen: Tensor

    def __init__(self, limit: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.limit = limit
        self.calls: list[int] = []
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 1)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Any:
        self.calls.append(len(x))
        self.seen += len(x)
        hidden = self.first(x).tanh()
        if len(x) > self.limit:
            torch.empty(2**60, dtype=torch.uint8)
        return self.second(hidden)


class Unsupported(Hungry):
    """Fails for a reason of another kind."""

    def forward(self, x: Tensor) -> Any:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


def train(model: nn.Module, batch: int = 32, epochs: int = 2, loss: Any = nn.functional.mse_loss) -> None:
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with rex.init() as session:
        model, optimizer = session.prepare(model, optimizer)
        loader = session.loader(DATA, batch_size=batch)
        for _ in session.epochs(epochs):
            for x, y in loader:
                optimizer.zero_grad()
                session.backward(loss(model(x), y))
                optimizer.step()


def plain(model: nn.Module, batch: int = 32, epochs: int = 2) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        batches = torch.split(torch.as_tensor(permutation(5, epoch, len(DATA))), batch)
        for x, y in DataLoader(DATA, batch_sampler=[indices.tolist() for indices in batches]):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.mse_loss(model(x), y))
            optimizer.step()


def test_c_171_a_forward_pass_out_of_memory_trains_on_as_if_nothing_had_been() -> None:
    model, expected = Hungry(limit=20), Hungry(limit=1000)
    train(model)
    plain(expected)
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-7)
    assert model.calls[:2] == [32, 2], "it fails, and something of the right shape stands in"
    assert set(model.calls[2:]) == {16}, "then the same batch in two passes"
    assert model.seen == 2 * len(DATA), "buffers are as if the void step had never been"


def test_random_numbers_are_drawn_as_if_the_void_step_had_never_been() -> None:
    class Dropping(Hungry):
        def forward(self, x: Tensor) -> Any:
            return super().forward(nn.functional.dropout(x, 0.5, training=True))

    pairs = []
    for limit in (20, 1000):
        torch.manual_seed(3)
        model = Dropping(limit)
        torch.manual_seed(4)
        train(model, batch=32 if limit == 20 else 16, epochs=1)
        pairs.append(torch.rand(1))
    assert torch.equal(*pairs), "96 samples were dropped out once in either case"


def test_an_emulated_device_is_full_in_the_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"REX_EMULATE": "1", "REX_EMULATE_SCALE": "0.001", "REX_DEVICE": "t4"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tests.worker.test_forward_guard.DATA", TensorDataset(torch.randn(600, 4), torch.randn(600, 1)))
    model = Hungry(limit=1000)
    train(model, batch=300, epochs=1)
    assert model.calls == [2, 150, 150, 150, 150], "192 fit a t4: 300 are not even tried"


def test_c_170_an_error_of_another_kind_is_the_scripts() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        train(Unsupported(limit=20))


def test_memory_that_is_full_outside_of_the_model_ends_a_script_that_is_alone() -> None:
    def greedy(output: Tensor, y: Tensor) -> Tensor:
        torch.empty(2**60, dtype=torch.uint8)
        return nn.functional.mse_loss(output, y)

    with pytest.raises(RuntimeError, match="can't allocate memory"):
        train(Hungry(limit=1000), loss=greedy)


@dataclass
class Batch:
    """A training with one batch in hand."""

    samples: int
    message: str | None = None

    def in_hand(self) -> int:
        return self.samples

    def admit(self) -> None:
        if self.message is None and self.samples > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def is_unfit(self) -> bool:
        return self.message is not None

    def ran_out(self, message: str) -> None:
        self.message = message


class Outputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> dict[str, Any]:
        out = self.linear(x)
        return {"logits": out, "loss": out.sum(), "best": out.argmax(-1), "parts": (out[..., 0], mask), "name": "n"}


def test_the_stand_in_has_the_outputs_shapes_and_can_be_trained_on() -> None:
    model, batch = Outputs(), Batch(7)
    ForwardGuard(model, CPU, NoMeter()).passes = batch
    out = model(torch.randn(7, 3), mask=torch.ones(7, dtype=torch.bool))
    assert batch.message == "CUDA out of memory"
    assert out["logits"].shape == (7, 2) and out["best"].shape == (7,) and out["loss"].shape == ()
    assert out["parts"][0].shape == (7,) and out["parts"][1].shape == (7,) and out["name"] == "n"
    out["logits"].mul_(2.0)
    assert (out["logits"].sum() + out["loss"]).requires_grad
    again = model(torch.randn(7, 3))
    assert again["logits"].shape == (7, 2), "a second call in the same pass is not even tried"


def test_time_may_come_before_the_samples() -> None:
    tree: dict[str, Any] = {"x": torch.arange(12).view(2, 6), "length": 6}
    for samples, wanted, expected in (
        (6, 2, [[0, 1], [6, 7]]),
        (6, 8, [[0, 1, 2, 3, 4, 5, 0, 1], [6, 7, 8, 9, 10, 11, 6, 7]]),
        (2, 1, [[0, 1, 2, 3, 4, 5]]),
    ):
        assert torch.equal(resized(tree, samples, wanted)["x"], torch.tensor(expected))


def test_evaluation_is_none_of_the_guards_business() -> None:
    model, batch = Outputs(), Batch(7)
    ForwardGuard(model, CPU, NoMeter()).passes = batch
    with torch.no_grad():
        assert model(torch.randn(7, 3))["logits"].shape == (7, 2)
    assert batch.message is None


def test_one_sample_cannot_be_made_smaller() -> None:
    model, batch = Hungry(limit=0), Batch(1)
    ForwardGuard(model, CPU, NoMeter()).passes = batch
    with pytest.raises(RuntimeError, match="can't allocate"):
        model(torch.randn(1, 4))
    assert batch.message is None


def test_copies_of_a_guarded_model_are_models_of_their_own() -> None:
    model = Outputs()
    guard = ForwardGuard(model, CPU, NoMeter())
    x = torch.randn(5, 3)
    for twin in (copy.deepcopy(model), copy.deepcopy(copy.deepcopy(model)), pickle.loads(pickle.dumps(model))):
        assert not isinstance(twin.forward, ForwardGuard)
        nn.init.zeros_(twin.linear.weight)
        nn.init.zeros_(twin.linear.bias)
        assert twin(x)["logits"].abs().sum() == 0
    assert model(x)["logits"].abs().sum() > 0
    assert model.forward is guard
    assert list(model.state_dict()) == ["linear.weight", "linear.bias"]


def test_who_asks_for_the_models_arguments_is_told_its_own() -> None:
    model = Outputs()
    ForwardGuard(model, CPU, NoMeter())
    assert list(inspect.signature(model.forward).parameters) == ["x", "mask"]


def test_a_guarded_model_can_be_compiled_as_one_graph() -> None:
    model, x = Outputs(), torch.randn(5, 3)
    ForwardGuard(model, CPU, NoMeter())
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x)["logits"], model(x)["logits"])
