from __future__ import annotations

from pathlib import Path

import pytest

from rex_worker.protocol import Ack, Ready
from tests.cluster.ports import quiet_port
from tests.worker.ledger import SCRIPT, Ledgers
from tests.worker.operator_double import Operator, make_plan, serving

pytestmark = pytest.mark.component

PACED = {"REX_EMULATE": "1", "REX_EMULATE_SCALE": "0.5", "SAMPLES": "503", "EPOCHS": "10000"}


async def test_training_goes_on_and_the_returned_operator_learns_where_everybody_is(
    tmp_path: Path, nursery: object
) -> None:
    from tests.worker.operator_double import Nursery

    assert isinstance(nursery, Nursery)
    ledgers = Ledgers(tmp_path)
    rex = Operator(tmp_path, nursery)
    try:
        port = quiet_port()  # nobody may take it while the operator is away
        async with serving(rex, port):
            a, b = [await rex.start(n, SCRIPT, **ledgers.variables(n, **PACED)) for n in ("w0", "w1")]
            await rex.ready(a, b)
            await rex.form(4, {"w0": 20, "w1": 10}, version=9)
            await rex.reached(5, a, b)
        away = max(entry["step"] for entry in ledgers.kind("applied"))
        await rex.until_true("training goes on alone", lambda: len(ledgers.kind("applied", "w0")) > away + 20)
        async with serving(rex, port):
            await rex.until("Hello again", lambda: len(a.hellos) > 1 and len(b.hellos) > 1)
            for worker in (a, b):
                hello = worker.hellos[-1]
                assert (hello.generation, hello.plan_version) == (4, 9) and hello.step > away + 10
                assert len(worker.said(Ready)) >= 1
            await rex.until("the acknowledgement again", lambda: len(a.said(Ack)) > 1 and len(b.said(Ack)) > 1)
            assert {ack.step for worker in (a, b) for ack in worker.said(Ack)} == {1}
            await rex.send(make_plan(4, 10, {"w0": 15, "w1": 15}), a, b)
            await rex.acknowledged(10, a, b)
            ledgers.enough()
            assert await rex.ended(a, b) == [0, 0]
        ledgers.check_exactly_once(503)
    finally:
        await rex.clear()
