from __future__ import annotations

from pathlib import Path

import pytest

from rex_worker.protocol import Checkpointed, Left, Metrics
from tests.worker.ledger import SCRIPT, Ledgers
from tests.worker.operator_double import ROOT, Operator

pytestmark = pytest.mark.component


async def test_the_digits_example_trains_and_finishes(rex: Operator) -> None:
    workers = [await rex.start(name, ROOT / "examples/digits/train.py", EPOCHS="2") for name in ("w0", "w1")]
    await rex.ready(*workers)
    await rex.form(1, {"w0": 400, "w1": 112})
    assert await rex.acknowledged(1, *workers) == {1}
    assert await rex.ended(*workers) == [0, 0]
    for worker in workers:
        (left,) = worker.said(Left)
        assert (left.reason, left.samples) == ("finished", 2 * 1198 * 9)
    assert [metrics.samples for metrics in workers[0].said(Metrics)] == [1198 * 9, 2 * 1198 * 9]
    assert not workers[1].said(Metrics), "rank 0 speaks for all"


async def test_c_100_uneven_shares_of_an_uneven_dataset(rex: Operator, tmp_path: Path) -> None:
    ledgers = Ledgers(tmp_path)
    names = ("w0", "w1", "w2")
    workers = [
        await rex.start(n, SCRIPT, **ledgers.variables(n), REX_CHECKPOINT_DIR=str(tmp_path / "kept")) for n in names
    ]
    await rex.ready(*workers)
    await rex.form(1, {"w0": 100, "w1": 60, "w2": 40})
    assert await rex.ended(*workers) == [0, 0, 0]
    ledgers.check_exactly_once(1003)
    ledgers.check_same_end(*names)
    assert [message.final for message in workers[0].said(Checkpointed)] == [True]
    steps = {name: [(r.step, r.samples) for r in worker.steps()] for name, worker in zip(names, workers, strict=True)}
    assert steps["w0"] == steps["w1"] == steps["w2"]
    assert len(steps["w0"]) == 3 * 6, "five full steps and a short one, in each epoch"
    assert [r.local_batch for r in workers[0].steps()][:6] == [100] * 5 + [1]
    assert [r.local_batch for r in workers[2].steps()][:6] == [40] * 5 + [1]


async def test_c_100_a_rank_0_without_a_share_in_an_epochs_last_step(rex: Operator, tmp_path: Path) -> None:
    ledgers, names = Ledgers(tmp_path), ("w0", "w1", "w2")
    workers = [await rex.start(n, SCRIPT, **ledgers.variables(n, SAMPLES="773")) for n in names]
    await rex.ready(*workers)
    await rex.form(1, {"w0": 1, "w1": 150, "w2": 100})
    assert await rex.ended(*workers) == [0, 0, 0]
    ledgers.check_exactly_once(773)
    ledgers.check_same_end(*names)
    assert [r.local_batch for r in workers[0].steps()][:4] == [1, 1, 1, 0]
