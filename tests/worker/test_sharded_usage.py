"""What a script can do wrong with a sharded model is said before anything is trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.data import TensorDataset

import rex_worker as rex
from rex_worker.errors import UsageError

DATA = TensorDataset(torch.randn(12, 4), torch.randn(12, 1))


class Scaled(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 1)
        self.scale = nn.Parameter(torch.tensor(1.0))


def train(model: nn.Module, shard: Any) -> None:
    with rex.init() as session:
        model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), shard=shard)
        loader = session.loader(DATA, batch_size=4)
        for _ in session.epochs(1):
            for x, y in loader:
                session.backward(nn.functional.mse_loss(model(x), y))
                optimizer.step()


def right(model: nn.Module, mesh: Any) -> None:
    fully_shard(model, mesh=mesh)


def forgets_the_model(model: nn.Module, mesh: Any) -> None:
    fully_shard(model.get_submodule("0"), mesh=mesh)


def leaves_one_out(model: nn.Module, mesh: Any) -> None:
    fully_shard(model, mesh=mesh, ignored_params={model.get_parameter("0.bias")})


@pytest.mark.parametrize(
    ("model", "shard", "words"),
    [
        (nn.Sequential(nn.Linear(4, 1)), forgets_the_model, "must end with fully_shard"),
        (nn.Sequential(nn.Linear(4, 1)), leaves_one_out, "'0.bias' is not sharded"),
        (nn.Linear(4, 1, device="meta"), right, "'weight' is on the meta device"),
        (Scaled(), right, "'scale' is a single number"),
        (torch.compile(nn.Linear(4, 1)), right, "a compiled model"),
    ],
    ids=["the model itself", "a parameter left out", "meta", "a single number", "compiled"],
)
def test_what_cannot_be_sharded_is_named(model: nn.Module, shard: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        train(model, shard)


def test_a_torch_that_lacks_what_is_needed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FSDPModule, "set_custom_all_gather")
    with pytest.raises(UsageError, match=r"needs a newer torch.*set_custom_all_gather"):
        train(nn.Linear(4, 1), right)


def test_alone_a_sharded_model_trains_as_a_plain_one() -> None:
    trained = []
    for shard in (None, right):
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        train(model, shard)
        x = torch.ones(2, 4)
        trained.append(model(x).detach())
    assert torch.equal(*trained)


def test_the_policys_mixed_precision_holds() -> None:
    def low(model: nn.Module, mesh: Any) -> None:
        fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))

    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    seen = set()
    model[0].register_forward_hook(lambda module, arguments, output: seen.add((output.dtype, module.weight.dtype)))
    train(model, low)
    assert seen == {(torch.bfloat16, torch.bfloat16)}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
