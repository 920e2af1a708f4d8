"""The adapters train for real: alone, with a plan that changes, with a newcomer, and to an early end."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from rex_worker.protocol import GroupLost
from tests.worker.ledger import Ledgers
from tests.worker.operator_double import ROOT, Nursery, Operator, Worker, make_plan

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


async def workers(adapter: str, ledgers: Ledgers, rex: Operator, *names: str, **variables: str) -> list[Worker]:
    script, emulated = SCRIPTS / f"{adapter}_script.py", {"REX_EMULATE": "1", **variables, **OFFLINE}
    out = {name: {"OUT": str(ledgers.folder / f"out-{name}")} for name in names}
    return [await rex.start(name, script, **ledgers.variables(name, **emulated, **out[name])) for name in names]


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_it_trains_alone(adapter: str, ledgers: Ledgers, nursery: Nursery) -> None:
    log, ended = ledgers.folder / "log", ledgers.folder / "exit"
    variables = {name: value for name, value in os.environ.items() if not name.startswith("REX_")}
    variables |= {"PYTHONPATH": str(ROOT), "OUT": str(ledgers.folder / "out"), **OFFLINE, **ledgers.variables("alone")}
    nursery.start(SCRIPTS / f"{adapter}_script.py", variables, log, ended)
    async with asyncio.timeout(240):
        while not ended.exists():
            await asyncio.sleep(0.05)
    assert ended.read_text() == "0", log.read_text()[-4000:]
    ledgers.check_exactly_once(SIZE)
    assert end_of(ledgers, "alone")["samples"] == 6 * SIZE


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_plans_and_members_change_while_it_trains(adapter: str, ledgers: Ledgers, rex: Operator) -> None:
    names = ("w0", "w1", "w2")
    a, b, c = await workers(adapter, ledgers, rex, *names, EPOCHS="24")
    await rex.ready(a, b, c)
    await rex.form(1, {"w0": 12, "w1": 8})
    await rex.reached(15, a, b)
    own = {"accumulation": 3, "passes": {"w0": 1}}
    await rex.send(make_plan(1, 2, {"w0": 9, "w1": 14}, **own, learning_rate_factor=1.1), a, b)
    (switched,) = await rex.acknowledged(2, a, b)
    await rex.reached(switched + 5, a, b)
    await rex.form(2, {"w0": 9, "w1": 6, "w2": 9}, version=3)
    (joined,) = await rex.acknowledged(3, a, b, c)
    await rex.reached(joined + 5, a, b, c)
    assert not a.said(GroupLost) and not b.said(GroupLost)
    b.signal(signal.SIGKILL)
    assert await rex.ended(b) == [-signal.SIGKILL]
    await rex.form(3, {"w0": 11, "w2": 9}, version=4)
    assert await rex.ended(a, c) == [0, 0]
    ledgers.check_exactly_once(SIZE)
    ledgers.check_same_end("w0", "w2")
    assert end_of(ledgers, "w0")["step"] > joined > switched
    assert next(entry["step"] for entry in ledgers.kind("applied", "w2")) == joined
    written = {name: list((ledgers.folder / f"out-{name}").glob("*")) for name in names}
    assert written["w0"] and not written["w1"] and not written["w2"], "rank 0 writes"


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_it_ends_early_on_all_workers(adapter: str, ledgers: Ledgers, rex: Operator) -> None:
    a, b = await workers(adapter, ledgers, rex, "w0", "w1", EPOCHS="1000", STOP="1")
    await rex.ready(a, b)
    await rex.form(1, {"w0": 12, "w1": 8})
    assert await rex.ended(a, b) == [0, 0]
    ledgers.check_exactly_once(SIZE)
    ledgers.check_same_end("w0", "w1")
