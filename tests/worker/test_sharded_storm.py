"""Random elastic events on a sharded model: plans, joins, leaves and losses, and the end is that of a plain loop."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from rex_worker.protocol import Checkpointed
from tests.worker.ledger import Ledgers
from tests.worker.operator_double import Operator
from tests.worker.sharded_model import Numbered, build
from tests.worker.storm import SAMPLES, WEIGHTS, Storm

pytestmark = pytest.mark.component


class ShardedStorm(Storm):
    """The same weather over a sharded model, which goes back to a checkpoint when a worker is lost."""

    script = Path(__file__).with_name("sharded_script.py")
    environment: Mapping[str, str] = {"REX_EMULATE_SCALE": "0.1"}
    rtol, atol = 1e-8, 1e-10

    async def begin(self, workers: int = 3) -> None:
        await super().begin(workers)
        await self._rex.until("a checkpoint", lambda: any(worker.said(Checkpointed) for worker in self._group))

    def kept(self) -> Mapping[str, str]:
        return {"REX_CHECKPOINT_DIR": str(self._ledgers.folder / "kept"), "REX_CHECKPOINT_EVERY": "5"}

    def beginning(self) -> tuple[Any, torch.nn.Module, torch.optim.Optimizer]:
        return Numbered(SAMPLES), *build(WEIGHTS)


async def test_random_events_leave_no_trace_in_a_sharded_model(rex: Operator, tmp_path: Path) -> None:
    storm = ShardedStorm(rex, Ledgers(tmp_path), seed=3)
    await storm.begin()
    for _ in range(8):
        await storm.strike()
    await storm.end()
