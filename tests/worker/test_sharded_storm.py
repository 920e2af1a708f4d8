"""Random elastic events on a sharded model: plans, joins, leaves and losses, and the end is that of a plain loop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rex_worker.protocol import Checkpointed
from rex_worker.sampler import permutation
from tests.worker.ledger import Ledgers
from tests.worker.operator_double import Operator, Worker
from tests.worker.sharded_model import Numbered, build
from tests.worker.storm import GLOBAL_BATCH, SAMPLES, SEED, WEIGHTS, Storm

pytestmark = pytest.mark.component

SCRIPT = Path(__file__).with_name("sharded_script.py")


class ShardedStorm(Storm):
    """The same weather over a sharded model, which goes back to a checkpoint when a worker is lost."""

    async def begin(self, workers: int = 3) -> None:
        await super().begin(workers)
        await self._rex.until("a checkpoint", lambda: any(worker.said(Checkpointed) for worker in self._group))

    async def _start(self, name: str) -> Worker:
        self._lives += 1
        run = {"REX_EMULATE": "1", "REX_EMULATE_SCALE": "0.1", "EPOCHS": "1000000", "SAMPLES": str(SAMPLES)}
        keep = {"REX_CHECKPOINT_DIR": str(self._ledgers.folder / "kept"), "REX_CHECKPOINT_EVERY": "5"}
        variables = self._ledgers.variables(f"{name}-{self._lives}", **run, **keep, WEIGHTS=str(WEIGHTS))
        worker = await self._rex.start(name, SCRIPT, **variables)
        await self._rex.ready(worker)
        return worker

    async def end(self) -> None:
        self._ledgers.enough()
        assert await self._rex.ended(*self._group) == [0] * len(self._group)
        self._ledgers.check_exactly_once(SAMPLES)
        (step,) = {entry["step"] for entry in self._ledgers.kind("end")}
        undisturbed = plain_parameters(step)
        for entry in self._ledgers.kind("end"):
            found = torch.tensor(entry["parameters"], dtype=torch.float64)
            torch.testing.assert_close(found, undisturbed, rtol=1e-8, atol=1e-10)


def plain_parameters(steps: int) -> torch.Tensor:
    """Parameters of the same training in a plain loop, after so many steps: shape (parameters,), float64."""
    data = Numbered(SAMPLES)
    model, optimizer = build(WEIGHTS)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
    done, epoch = 0, 0
    while done < steps:
        for rows in torch.split(torch.from_numpy(permutation(SEED, epoch, SAMPLES)), GLOBAL_BATCH):
            optimizer.zero_grad()
            torch.autograd.backward(torch.nn.functional.mse_loss(model(data.x[rows]), data.y[rows]))
            optimizer.step()
            done += 1
            if done == steps:
                break
        else:
            scheduler.step()
        epoch += 1
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


async def test_random_events_leave_no_trace_in_a_sharded_model(rex: Operator, tmp_path: Path) -> None:
    storm = ShardedStorm(rex, Ledgers(tmp_path), seed=3)
    await storm.begin()
    for _ in range(8):
        await storm.strike()
    await storm.end()
