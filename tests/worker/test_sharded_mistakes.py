"""Workers that do not run the same sharded layers would exchange the wrong ones; that is found out, not trained on."""

from __future__ import annotations

import pytest

from rex_worker.protocol import Failed
from tests.worker.operator_double import Operator

pytestmark = pytest.mark.component

SWAPPED = """
import torch
import rex_worker as rex
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
    def forward(self, x):
        return self.a(self.b(x)) if session.rank else self.b(self.a(x))
def shard(model, mesh):
    for part in (model.a, model.b, model):
        fully_shard(part, mesh=mesh)
with rex.init() as session:
    model = Net()
    model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), shard=shard)
    loader = session.loader(TensorDataset(torch.randn(40, 4)))
    for epoch in session.epochs(1):
        for (x,) in loader:
            session.backward(model(x).square().mean())
            optimizer.step()
"""


async def test_layers_in_another_order_end_the_training(rex: Operator) -> None:
    workers = [await rex.start(n, SWAPPED) for n in ("w0", "w1")]
    await rex.ready(*workers)
    await rex.form(1, {"w0": 3, "w1": 2})
    assert await rex.ended(*workers) == [1, 1]
    for worker in workers:
        (failed,) = worker.said(Failed)
        assert "did not call the same sharded layers" in failed.error
