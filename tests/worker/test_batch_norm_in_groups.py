"""C-118 with real processes: shares of one sample, a last step of one, a worker that fails, a newcomer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rex_worker.protocol import Failed, GroupLost, Left
from tests.worker.operator_double import Operator

pytestmark = pytest.mark.component

SCRIPT = """
import hashlib, json, os
import torch
import rex_worker as rex
from torch import nn
from torch.utils.data import TensorDataset
SIZE, EPOCHS = int(os.environ["SAMPLES"]), int(os.environ.get("EPOCHS", "2"))
torch.manual_seed(os.getpid())  # every worker starts from other weights and statistics
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
model[1].running_mean.normal_()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = TensorDataset(torch.randn(SIZE, 6, generator=torch.Generator().manual_seed(1)))
def digest():
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in model.state_dict().values())).hexdigest()
with rex.init() as session:
    scaler = torch.amp.GradScaler("cpu", growth_interval=2)
    model, optimizer, scaler = session.prepare(model, optimizer, scaler=scaler)
    loader = session.loader(data)
    digests = {}
    for epoch in session.epochs(EPOCHS):
        for (x,) in loader:
            optimizer.zero_grad()
            if session.step == 3 and "FAIL" in os.environ:
                raise ValueError("broken on one rank")
            session.backward(scaler.scale(model(x).square().mean()))
            before = session.step
            scaler.step(optimizer)
            scaler.update()
            if session.step > before:
                digests[session.step] = digest() + f"/{scaler.get_scale()}"
            if os.path.exists(os.environ.get("ENOUGH", "/nowhere")):
                session.stop()
    with open(os.environ["OUT"], "w") as file:
        json.dump({"digests": digests, "end": digest(), "samples": session.samples}, file)
"""


def results(folder: Path, *names: str) -> list[dict[str, Any]]:
    return [json.loads((folder / name).read_text()) for name in names]


async def test_c_118_five_samples_on_four_workers_with_a_last_step_of_one(rex: Operator, tmp_path: Path) -> None:
    names = ["w0", "w1", "w2", "w3"]
    workers = [await rex.start(n, SCRIPT, OUT=str(tmp_path / n), SAMPLES="21") for n in names]
    await rex.ready(*workers)
    await rex.form(1, {"w0": 2, "w1": 1, "w2": 1, "w3": 1})
    assert await rex.ended(*workers) == [0, 0, 0, 0]
    first, *others = results(tmp_path, *names)
    assert first["samples"] == 42 and len(first["digests"]) == 10
    assert all(other == first for other in others), "parameters, statistics and scale are the same after each step"
    assert all(worker.said(Left)[-1].reason == "finished" for worker in workers)


async def test_c_118_an_error_on_one_rank_is_soon_known_to_all(rex: Operator, tmp_path: Path) -> None:
    names = ["w0", "w1", "w2"]
    variables = {"SAMPLES": "5000", "ENOUGH": str(tmp_path / "enough")}
    workers = [
        await rex.start(n, SCRIPT, OUT=str(tmp_path / n), **variables, **({"FAIL": "yes"} if n == "w1" else {}))
        for n in names
    ]
    await rex.ready(*workers)
    await rex.form(1, {"w0": 3, "w1": 2, "w2": 2}, collective_timeout_s=600)
    assert await rex.end_of(workers[1]) == 1
    (failed,) = workers[1].said(Failed)
    assert failed.error == "ValueError: broken on one rank"
    left = [workers[0], workers[2]]
    await rex.until("the others to notice", lambda: all(worker.said(GroupLost) for worker in left), timeout=20)
    await rex.form(2, {"w0": 3, "w2": 4})
    await rex.reached(10, *left)
    (tmp_path / "enough").touch()
    assert await rex.ended(*left) == [0, 0]
    first, second = results(tmp_path, "w0", "w2")
    assert first["end"] == second["end"]


async def test_a_newcomer_gets_statistics_and_scale(rex: Operator, tmp_path: Path) -> None:
    variables = {"SAMPLES": "5000", "ENOUGH": str(tmp_path / "enough")}
    old = await rex.start("w0", SCRIPT, OUT=str(tmp_path / "w0"), **variables)
    await rex.ready(old)
    await rex.form(1, {"w0": 6})
    await rex.reached(4, old)
    new = await rex.start("w1", SCRIPT, OUT=str(tmp_path / "w1"), **variables)
    await rex.ready(new)
    await rex.form(2, {"w0": 4, "w1": 3})
    await rex.reached(new.last_step + 20, old)
    await rex.until("the newcomer's steps", lambda: len(new.steps()) >= 3)
    (tmp_path / "enough").touch()
    assert await rex.ended(old, new) == [0, 0]
    before, after = results(tmp_path, "w0", "w1")
    assert after["digests"] and after["digests"].items() <= before["digests"].items()
