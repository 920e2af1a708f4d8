from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rex_worker.protocol import Ready
from tests.worker.ledger import Ledgers
from tests.worker.operator_double import Operator, make_plan

pytestmark = pytest.mark.component

SCRIPT = Path(__file__).with_name("rates_script.py")
PACED = {"REX_EMULATE": "1", "REX_EMULATE_SCALE": "0.5"}
INITIAL, PER_EPOCH = 20, 25
"""The schedule is meant for this batch; an epoch has 500 samples."""


async def test_c_110_newcomers_and_survivors_go_on_from_where_the_climb_is(rex: Operator, tmp_path: Path) -> None:
    ledgers = Ledgers(tmp_path)
    a, b, c = [await rex.start(n, SCRIPT, **ledgers.variables(n, **PACED)) for n in ("w0", "w1", "w2")]
    await rex.ready(a, b, c)
    assert not any(ready.adaptive for worker in (a, b, c) for ready in worker.said(Ready))
    await rex.form(1, {"w0": 13, "w1": 7}, plan={"initial_batch": INITIAL})
    await rex.reached(3, a, b)
    high = {"learning_rate_factor": 1000.0, "initial_batch": INITIAL}
    await rex.send(make_plan(1, 2, {"w0": 27, "w1": 13}, **high), a, b)
    (began,) = await rex.acknowledged(2, a, b)
    await rex.form(3, {"w0": 27, "w1": 13, "w2": 10}, plan=high)
    (joined,) = await rex.acknowledged(3, a, b, c)
    await rex.reached(joined + 3, a, b, c)
    a.signal(signal.SIGKILL)
    assert await rex.ended(a) == [-9]
    await rex.form(4, {"w1": 13, "w2": 10}, plan=high)
    (regrouped,) = await rex.acknowledged(4, b, c)
    await rex.reached(regrouped + 3, b, c)
    await rex.send(make_plan(4, 5, {"w1": 10, "w2": 10}, initial_batch=INITIAL), b, c)
    (back,) = await rex.acknowledged(5, b, c)
    await rex.reached(back + 3, b, c)
    ledgers.enough()
    assert await rex.ended(b, c) == [0, 0]

    steps = {entry["step"]: entry for entry in ledgers.kind("applied", "w1")}
    applied = ledgers.kind("applied", "w1") + ledgers.kind("applied", "w2")
    # What the first worker did last may be lost to the others, who then took that step again, as another one.
    applied += [entry for entry in ledgers.kind("applied", "w0") if entry["step"] < regrouped]
    for entry in applied:
        mine = steps[entry["step"]]
        assert (entry["samples"], entry["base"]) == (mine["samples"], mine["base"]), "the same on all workers"
        assert entry["factor"] == pytest.approx(mine["factor"], rel=1e-9)
    before = 0
    for step, entry in sorted(steps.items()):
        climbed = 1.0 if not began <= step < back else min(1000.0, 0.9 ** -(step - began + 1))
        assert entry["factor"] == pytest.approx(climbed, rel=1e-6), f"step {step} of {began}, {joined}, {back}"
        updates = before // 500 * PER_EPOCH + before % 500 // INITIAL
        assert entry["base"] == pytest.approx(1 / (1 + updates)), f"step {step}, after {before} samples"
        before = entry["samples"]
