"""The adapters train for real: alone, and with two workers whose plan changes while they train."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from rex_worker.protocol import GroupLost
from tests.worker.ledger import Ledgers
from tests.worker.operator_double import ROOT, Nursery, Operator, make_plan

pytestmark = pytest.mark.component

SCRIPTS = Path(__file__).parent / "adapters"
ADAPTERS = ["accelerate", "lightning", "transformers"]
OFFLINE = {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "error"}
SIZE = 203


@pytest.fixture
def ledgers(tmp_path: Path) -> Ledgers:
    return Ledgers(tmp_path)


def end_of(ledgers: Ledgers, name: str) -> dict[str, Any]:
    (end,) = ledgers.kind("end", name)
    assert end["last"] < 0.7 * end["first"], "the loss falls"
    return end


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_it_trains_alone(adapter: str, ledgers: Ledgers, nursery: Nursery) -> None:
    log, ended = ledgers.folder / "log", ledgers.folder / "exit"
    variables = {name: value for name, value in os.environ.items() if not name.startswith("REX_")}
    variables |= {"PYTHONPATH": str(ROOT), "OUT": str(ledgers.folder / "out"), **OFFLINE, **ledgers.variables("alone")}
    nursery.start(SCRIPTS / f"{adapter}_script.py", variables, log, ended)
    async with asyncio.timeout(90):
        while not ended.exists():
            await asyncio.sleep(0.05)
    assert ended.read_text() == "0", log.read_text()[-4000:]
    ledgers.check_exactly_once(SIZE)
    assert end_of(ledgers, "alone")["samples"] == 6 * SIZE


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_two_workers_change_their_plan_while_it_trains(adapter: str, ledgers: Ledgers, rex: Operator) -> None:
    names = ("w0", "w1")
    emulated = {"REX_EMULATE": "1", "EPOCHS": "8"}
    out = {name: {"OUT": str(ledgers.folder / f"out-{name}")} for name in names}
    script = SCRIPTS / f"{adapter}_script.py"
    a, b = [
        await rex.start(name, script, **ledgers.variables(name, **emulated, **out[name], **OFFLINE)) for name in names
    ]
    await rex.ready(a, b)
    await rex.form(1, {"w0": 12, "w1": 8})
    await rex.reached(15, a, b)
    await rex.send(make_plan(1, 2, {"w0": 9, "w1": 14}, accumulation=2, learning_rate_factor=1.1), a, b)
    (switched,) = await rex.acknowledged(2, a, b)
    assert await rex.ended(a, b) == [0, 0]
    ledgers.check_exactly_once(SIZE)
    ledgers.check_same_end(*names)
    assert end_of(ledgers, "w0")["step"] > switched
    assert not a.said(GroupLost) and not b.said(GroupLost)
    assert Path(out["w0"]["OUT"]).exists() and not any(Path(out["w1"]["OUT"]).glob("*")), "rank 0 writes"
