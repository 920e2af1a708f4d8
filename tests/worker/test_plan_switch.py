from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.worker.ledger import SCRIPT, Ledgers
from tests.worker.operator_double import Operator, make_plan

pytestmark = pytest.mark.component

PACED = {"REX_EMULATE": "1", "REX_EMULATE_SCALE": "0.5", "SAMPLES": "501", "EPOCHS": "10000"}


async def test_all_workers_switch_at_the_same_step_whenever_the_plan_reaches_them(
    rex: Operator, tmp_path: Path
) -> None:
    ledgers = Ledgers(tmp_path)
    a, b = [await rex.start(n, SCRIPT, **ledgers.variables(n, **PACED)) for n in ("w0", "w1")]
    await rex.ready(a, b)
    await rex.form(1, {"w0": 45, "w1": 5})
    await rex.acknowledged(1, a, b)
    second = make_plan(1, 2, {"w0": 30, "w1": 10}, accumulation=3, passes={"w1": 1}, learning_rate_factor=2.0)
    await rex.send(second, a)
    await rex.reached(a.last_step + 10, a, b)
    assert {report.plan_version for report in a.steps()} == {1}, "half of the group is not the group"
    await rex.send(second, b)
    (switched,) = await rex.acknowledged(2, a, b)
    # A newer one follows a newest one that not all have: all go to the newest that all have.
    third, fourth = make_plan(1, 3, {"w0": 50, "w1": 50}), make_plan(1, 4, {"w0": 60, "w1": 60})
    for plan, worker in ((third, a), (fourth, a), (third, b), (fourth, b)):
        await rex.send(plan, worker)
    (last,) = await rex.acknowledged(4, a, b)
    await rex.reached(last + 10, a, b)
    ledgers.enough()
    assert await rex.ended(a, b) == [0, 0]
    ledgers.check_exactly_once(501)
    ledgers.check_same_end("w0", "w1")
    versions = [{report.step: report.plan_version for report in worker.steps()} for worker in (a, b)]
    assert versions[0] == versions[1], "one plan per step, promise 3"
    assert [versions[0][step] for step in (switched - 1, switched, last - 1, last)] in ([1, 2, 2, 4], [1, 2, 3, 4])
    whole = {report.step for report in a.steps() if (report.plan_version, report.local_batch) == (2, 30)}
    for name, own in (("w0", 3), ("w1", 1)):
        ran = Counter(entry["step"] for entry in ledgers.kind("batch", name) if entry["step"] in whole)
        assert set(ran.values()) <= {own}, "each takes its share in its own number of passes"
    firsts = {report.step: report.marks for report in a.steps() if "after-change" in report.marks}
    assert {1, switched, last} <= set(firsts)
    rates = {entry["rate"] for entry in ledgers.kind("applied") if entry["epoch"] == 0}
    assert rates == {1e-3}, "the script sees the base rate under every plan (C-110)"


async def test_repeats_of_a_plan_change_nothing(rex: Operator, tmp_path: Path) -> None:
    ledgers = Ledgers(tmp_path)
    a = await rex.start("w0", SCRIPT, **ledgers.variables("w0", **PACED))
    await rex.ready(a)
    await rex.form(1, {"w0": 60})
    await rex.acknowledged(1, a)
    for version in (5, 5, 3, 5):
        await rex.send(make_plan(1, version, {"w0": 90}), a)
    await rex.send(make_plan(7, 9, {"w0": 17}), a)  # of a generation that this worker is not in
    (last,) = await rex.acknowledged(5, a)
    await rex.reached(last + 20, a)
    ledgers.enough()
    assert await rex.ended(a) == [0]
    assert {report.plan_version for report in a.steps()} <= {1, 3, 5}
    assert a.steps()[-1].plan_version == 5
