"""Sharded models in real groups: the same training as one process, in a group that stays and one that changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rex_worker.protocol import Drain, GroupLost, Ready
from tests.worker.ledger import Ledgers
from tests.worker.operator_double import Operator, make_plan
from tests.worker.sharded_model import Numbered, build

pytestmark = pytest.mark.component

SCRIPT = Path(__file__).with_name("sharded_script.py")


@pytest.fixture
def ledgers(tmp_path: Path) -> Ledgers:
    return Ledgers(tmp_path)


def check_same_parameters(ledgers: Ledgers, *names: str, tolerance: float = 1e-6) -> None:
    ends = [entry for name in names for entry in ledgers.kind("end", name)]
    assert len(ends) == len(names)
    assert len({(end["step"], end["samples"], end["rate"]) for end in ends}) == 1
    first = torch.tensor(ends[0]["parameters"]).double()
    for end in ends[1:]:
        other = torch.tensor(end["parameters"]).double()
        assert float((other - first).norm() / first.norm()) < tolerance


async def test_a_sharded_group_trains_as_one_process_does(rex: Operator, ledgers: Ledgers) -> None:
    run = {"SAMPLES": "203", "EPOCHS": "2", "WEIGHTS": "5", "CLIP": "0.4"}
    alone = await rex.start("w9", SCRIPT, **ledgers.variables("alone", **run, WHOLE="1"))
    await rex.ready(alone)
    await rex.form(1, {"w9": 50})
    assert await rex.ended(alone) == [0]
    names = ("w0", "w1", "w2")
    workers = [
        await rex.start(n, SCRIPT, **ledgers.variables(n, **{**run, "WEIGHTS": str(5 + i)}))
        for i, n in enumerate(names)
    ]
    await rex.ready(*workers)
    # A plan that gives some fewer passes is no reason to wait for ever: all run as many as any.
    await rex.form(1, {"w0": 31, "w1": 2, "w2": 17}, plan={"accumulation": 3, "passes": {"w0": 1}})
    assert await rex.ended(*workers) == [0, 0, 0]
    check_same_parameters(ledgers, "alone", *names)
    ran = [sum(entry["step"] == 1 for entry in ledgers.kind("batch", name)) for name in names]
    assert ran == [3, 3, 3]
    assert all(ready.equal_passes for worker in workers for ready in worker.said(Ready))
    assert not any(ready.equal_passes for ready in alone.said(Ready))
    held = [entry["held"] for name in names for entry in ledgers.kind("end", name)]
    assert sum(held) == len(ledgers.kind("end", "alone")[0]["parameters"]) and max(held) < sum(held) / 2


async def test_planned_changes_keep_all_steps_and_change_nothing(rex: Operator, ledgers: Ledgers) -> None:
    """2 -> 3 -> another plan -> 2 without the old rank 0 -> 1, then the end: as one group that ran all of it."""
    run = {"SAMPLES": "90", "EPOCHS": "100000", "PAUSE_S": "0.005"}
    names = ("w0", "w1", "w2")
    a, b, c = [
        await rex.start(n, SCRIPT, **ledgers.variables(n, **run, WEIGHTS=str(5 + i))) for i, n in enumerate(names)
    ]
    await rex.ready(a, b, c)
    await rex.form(1, {"w0": 5, "w1": 3})
    await rex.reached(5, a, b)
    await rex.form(2, {"w2": 2, "w0": 4, "w1": 3})
    (joined,) = await rex.acknowledged(2, a, b, c)
    await rex.reached(joined + 3, c)
    await rex.send(make_plan(2, 3, {"w2": 4, "w0": 1, "w1": 5}), a, b, c)
    (switched,) = await rex.acknowledged(3, a, b, c)
    await rex.reached(switched + 3, c)
    await rex.send(Drain(reason="smaller"), a)
    await rex.form(4, {"w1": 3, "w2": 6}, a)
    (left,) = await rex.acknowledged(4, b, c)
    assert await rex.ended(a) == [0]
    await rex.reached(left + 3, b, c)
    await rex.form(5, {"w2": 10}, b)
    (last,) = await rex.acknowledged(5, c)
    assert await rex.ended(b) == [0]
    await rex.reached(last + 3, c)
    ledgers.enough()
    assert await rex.ended(c) == [0]
    assert not any(worker.said(GroupLost) for worker in (a, b, c)), "a planned change loses no step"
    ledgers.check_exactly_once(90)
    (end,) = ledgers.kind("end", "w2")
    again = replayed(5, ledgers, end["step"])
    found = torch.tensor(end["parameters"]).double()
    assert float((found - again).norm() / again.norm()) < 1e-6


def replayed(weights: int, ledgers: Ledgers, steps: int) -> torch.Tensor:
    """What one process comes to that takes the same steps with the same samples."""
    batches: dict[int, list[int]] = {}
    epochs: dict[int, int] = {}
    for entry in ledgers.kind("batch"):
        batches.setdefault(entry["step"], []).extend(entry["indices"])
        epochs[entry["step"]] = entry["epoch"]
    rates = {entry["step"]: entry["rate"] for entry in ledgers.kind("applied")}
    model, optimizer = build(weights)
    data = Numbered(90)
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = rates[step]
        optimizer.zero_grad()
        torch.autograd.backward(torch.nn.functional.mse_loss(model(data.x[batches[step]]), data.y[batches[step]]))
        optimizer.step()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()
