from __future__ import annotations

import pytest

from rex_worker.protocol import Left
from tests.worker.operator_double import ROOT, Operator

DIGITS = 1437 * 9

pytestmark = pytest.mark.component


async def test_workers_train_under_one_plan_and_finish(rex: Operator) -> None:
    a = await rex.start("w0", ROOT / "examples/digits/train.py", EPOCHS="2")
    b = await rex.start("w1", ROOT / "examples/digits/train.py", EPOCHS="2")
    await rex.ready(a, b)
    await rex.form(1, {"w0": 200, "w1": 56})
    assert await rex.acknowledged(1, a, b) == {1}
    assert await rex.ended(a, b) == [0, 0]
    assert [message.reason for worker in (a, b) for message in worker.said(Left)] == ["finished", "finished"]
    assert a.said(Left)[0].samples == b.said(Left)[0].samples == 2 * DIGITS
