"""Judging with a sharded model is a work of all workers, whoever has how many samples to judge."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from rex_worker.protocol import Checkpointed, GroupLost, Metrics
from tests.worker.operator_double import Operator

pytestmark = pytest.mark.component

COMMON = """
import json, math, os, time
import torch
import rex_worker as rex
from torch.utils.data import TensorDataset
from tests.worker.sharded_model import Numbered, build, shard
model, _ = build(4)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
numbered = Numbered(int(os.environ["SAMPLES"]))
data, held_out = TensorDataset(numbered.x, numbered.y), TensorDataset(numbered.x[:23], torch.arange(23))
def train(session, loader):
    for x, y in loader:
        session.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
"""

TOTALS = (
    COMMON
    + """
def judge(batch):
    x, number = batch
    return [len(number), float(model(x).sum()), int(number.sum())]
with rex.init() as session:
    model, optimizer = session.prepare(model, optimizer, shard=shard)
    loader = session.loader(data)
    for epoch in session.epochs(1):
        train(session, loader)
    with open(os.environ["OUT"], "w") as file:
        json.dump(session.totals(held_out, judge, batch_size=4), file)
"""
)

OWN_LOOP = (
    COMMON
    + """
from rex_worker.keeping import Keeper
real = Keeper.keep_if_due
def keep_if_due(self, replica, group):
    real(self, replica, group)
    self.flush()  # the disk keeps up: a checkpoint is safe before the evaluation, however busy the machine is
Keeper.keep_if_due = keep_if_due
with rex.init() as session:
    model, optimizer = session.prepare(model, optimizer, shard=shard)
    loader = session.loader(data)
    for epoch in session.epochs(3):
        train(session, loader)
        generation = session.plan.generation
        if generation == 1:
            open(os.environ["OUT"] + ".evaluates", "w").close()
        last = False
        while not last:
            last = generation > 1 or os.path.exists(os.environ["LOST"])
            with torch.no_grad():
                score = float(model(held_out.tensors[0]).sum())
            time.sleep(0.01)
        session.report(score=score)
"""
)


async def test_totals_are_the_same_for_any_workers_and_shares(rex: Operator, tmp_path: Path) -> None:
    found = []
    for generation, batches in enumerate(([10], [1, 9], [8, 1, 1]), 1):
        names = [f"w{i}" for i in range(len(batches))]
        workers = [await rex.start(n, TOTALS, OUT=str(tmp_path / n), SAMPLES="40") for n in names]
        await rex.ready(*workers)
        await rex.form(generation, dict(zip(names, batches, strict=True)))
        assert await rex.ended(*workers) == [0] * len(batches)
        found += [json.loads((tmp_path / n).read_text()) for n in names]
    counts = {(count, numbers) for count, _, numbers in found}
    assert counts == {(23, sum(range(23)))}
    sums = [value for _, value, _ in found]
    assert sums == pytest.approx([sums[0]] * len(sums), rel=1e-9)


async def test_figures_of_an_evaluation_in_which_a_peer_was_lost_are_not_reported(
    rex: Operator, tmp_path: Path
) -> None:
    keep = {"REX_CHECKPOINT_DIR": str(tmp_path / "kept"), "REX_CHECKPOINT_EVERY": "2", "SAMPLES": "60"}
    keep["LOST"] = str(tmp_path / "lost")  # the evaluation lasts until the peer is
    names = ("w0", "w1", "w2")
    a, b, c = [await rex.start(n, OWN_LOOP, OUT=str(tmp_path / n), **keep) for n in names]
    await rex.ready(a, b, c)
    await rex.form(1, {"w0": 4, "w1": 3, "w2": 3}, collective_timeout_s=20)
    await rex.until_true("an evaluation", lambda: all((tmp_path / f"{n}.evaluates").exists() for n in names))
    await rex.until("a checkpoint", lambda: bool(a.said(Checkpointed)))
    c.signal(signal.SIGKILL)
    assert await rex.end_of(c) == -signal.SIGKILL
    (tmp_path / "lost").touch()
    safe = a.said(Checkpointed)[-1].step
    await rex.form(2, {"w0": 5, "w1": 5}, min_step=safe)
    assert await rex.ended(a, b) == [0, 0]
    assert a.said(GroupLost) and b.said(GroupLost)
    scores = [metrics.values["score"] for metrics in a.said(Metrics)]
    assert len(scores) == 3, "one for each epoch, none for the broken evaluation"
    assert len(set(scores)) == 3 and all(scores)
