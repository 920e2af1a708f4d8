from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.ledger import Ledgers
from tests.worker.operator_double import Operator
from tests.worker.storm import Storm

pytestmark = pytest.mark.component


async def test_twenty_random_events_leave_no_trace_in_the_parameters(rex: Operator, tmp_path: Path) -> None:
    storm = Storm(rex, Ledgers(tmp_path), seed=4)
    await storm.begin()
    for _ in range(20):
        await storm.strike()
    await storm.end()
