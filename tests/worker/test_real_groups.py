"""What only real gloo groups show: equal gradients, shared evaluation, memory that does not suffice."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

from rex_worker.protocol import Checkpointed, Left, OutOfMemory
from rex_worker.sampler import permutation
from tests.worker.ledger import SCRIPT, Ledgers
from tests.worker.operator_double import Operator

pytestmark = pytest.mark.component

COMMON = """
import json, os, sys
import torch
import rex_worker as rex
from torch import nn
from torch.utils.data import TensorDataset
torch.manual_seed(4)
model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 1)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(120, 6).double(), torch.randn(120, 1).double())
def save(**fields):
    with open(os.environ["OUT"], "w") as file:
        json.dump(fields, file)
"""

GRADIENTS = (
    COMMON
    + """
with rex.init() as session:
    model, optimizer = session.prepare(model, optimizer)
    loader = session.loader(data)
    gradients, passes = [], 0
    for epoch in session.epochs(1):
        for x, y in loader:
            passes += session.step == 0
            optimizer.zero_grad()
            session.backward(nn.functional.mse_loss(model(x), y))
            before = session.step
            ready = [p.grad.flatten().tolist() for p in model.parameters()]
            optimizer.step()
            if session.step > before:
                gradients.append(sum(ready, []))
    save(gradients=gradients, passes=passes)
"""
)

EVALUATION = (
    COMMON
    + """
held_out = TensorDataset(torch.randn(1003, 6).double(), torch.arange(1003))
def judge(batch):
    x, number = batch
    return [len(number), int((model(x).squeeze(1) > 0).sum()), int(number.sum())]
with rex.init() as session:
    model, optimizer = session.prepare(model, optimizer)
    loader = session.loader(data, batch_size=60)
    for epoch in session.epochs(1):
        for x, y in loader:
            session.backward(0.0 * nn.functional.mse_loss(model(x), y))
            optimizer.step()
        save(totals=session.totals(held_out, judge, batch_size=100), again=session.totals(held_out, judge))
"""
)


WAITING = """
import time
import rex_worker as rex
with rex.init() as session:
    print("up", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("own", [{}, {"w0": 1, "w2": 2}], ids=["equal passes", "own passes"])
async def test_gradients_of_a_real_group_are_those_of_one_process(
    rex: Operator, tmp_path: Path, own: dict[str, int]
) -> None:
    workers = [await rex.start(n, GRADIENTS, OUT=str(tmp_path / n)) for n in ("w0", "w1", "w2")]
    await rex.ready(*workers)
    await rex.form(1, {"w0": 31, "w1": 2, "w2": 17}, plan={"accumulation": 3, "passes": own})
    assert await rex.ended(*workers) == [0, 0, 0]
    told = [json.loads((tmp_path / n).read_text()) for n in ("w0", "w1", "w2")]
    assert [each["passes"] for each in told] == [own.get("w0", 3), 2, own.get("w2", 3)], "w1 has but two samples"
    found = [torch.tensor(each["gradients"], dtype=torch.float64) for each in told]
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])

    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(120, 6).double(), torch.randn(120, 1).double()
    for batch, gradient in zip(torch.split(torch.as_tensor(permutation(7, 0, 120)), 50), found[0], strict=True):
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.mse_loss(model(x[batch]), y[batch]))
        alone = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        assert float((gradient - alone).norm() / alone.norm()) < 1e-9
        optimizer.step()


async def test_c_108_an_evaluation_counts_each_sample_once_for_any_workers_and_shares(
    rex: Operator, tmp_path: Path
) -> None:
    results = []
    for generation, batches in enumerate(([20], [1, 40], [9, 30, 2]), 1):
        names = [f"w{i}" for i in range(len(batches))]
        workers = [await rex.start(n, EVALUATION, OUT=str(tmp_path / n)) for n in names]
        await rex.ready(*workers)
        await rex.form(generation, dict(zip(names, batches, strict=True)))
        assert await rex.ended(*workers) == [0] * len(batches)
        results += [json.loads((tmp_path / n).read_text()) for n in names]
    assert all(result == results[0] for result in results)
    assert results[0]["totals"] == results[0]["again"]
    count, _, numbers = results[0]["totals"]
    assert (count, numbers) == (1003, sum(range(1003)))


async def test_c_119_a_worker_out_of_memory_keeps_its_share_in_smaller_passes(rex: Operator, tmp_path: Path) -> None:
    ledgers = Ledgers(tmp_path)
    run = {"REX_EMULATE": "1", "REX_EMULATE_SCALE": "0.01", "EPOCHS": "2"}
    a, b = [await rex.start(n, SCRIPT, **ledgers.variables(n, **run)) for n in ("w0", "w1")]
    await rex.ready(a, b)
    await rex.form(1, {"w0": 300, "w1": 150})  # an emulated t4 holds 192
    assert await rex.ended(a, b) == [0, 0]
    (report,) = a.said(OutOfMemory)
    assert (report.local_batch, report.plan_version) == (300, 1) and "192 fit" in report.message
    assert not b.said(OutOfMemory)
    ledgers.check_exactly_once(1003)
    ledgers.check_same_end("w0", "w1")
    assert [r.local_batch for r in a.steps()][:2] == [300, 300], "the global batch is what was planned"


async def test_when_all_are_told_to_go_the_state_is_kept(rex: Operator, tmp_path: Path) -> None:
    ledgers = Ledgers(tmp_path)
    run = {"REX_EMULATE": "1", "EPOCHS": "10000", "REX_CHECKPOINT_DIR": str(tmp_path / "kept")}
    a, b = [await rex.start(n, SCRIPT, **ledgers.variables(n, **run)) for n in ("w0", "w1")]
    await rex.ready(a, b)
    await rex.form(1, {"w0": 30, "w1": 15})
    await rex.reached(5, a, b)
    for worker in (a, b):
        worker.signal(signal.SIGTERM)
    assert await rex.ended(a, b) == [0, 0]
    (left,) = {(left.reason, left.step) for worker in (a, b) for left in worker.said(Left)}
    assert left[0] == "drained"
    assert [message.step for message in a.said(Checkpointed)] == [left[1]]


async def test_a_worker_told_to_go_before_it_trains_just_goes(rex: Operator) -> None:
    script = (
        "import rex_worker as rex, time\nwith rex.init() as session:\n    print('up', flush=True)\n    time.sleep(60)\n"
    )
    worker = await rex.start("w0", script)
    await rex.until("Hello", lambda: bool(worker.hellos))
    await rex.until_true("the with block", lambda: "up" in worker.text())
    worker.signal(signal.SIGTERM)
    assert await rex.end_of(worker) == 0
    assert [left.reason for left in worker.said(Left)] == ["drained"]


async def test_a_renewed_token_is_read_again(rex: Operator, tmp_path: Path) -> None:
    token = tmp_path / "own-token"
    token.write_text("stale")
    script = "import rex_worker as rex\nwith rex.init() as session:\n    raise ValueError('over')\n"
    worker = await rex.start("w0", script, REX_TOKEN_FILE=str(token))
    await rex.until_true("a refusal", lambda: "refused the connection: HTTP 401" in worker.text())
    token.write_text("token-of-the-test")
    assert await rex.end_of(worker) == 1
    assert worker.hellos, "connected with the new one"
    assert "stale" not in worker.text() and "token-of-the-test" not in worker.text()
