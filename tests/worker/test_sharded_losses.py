"""A worker that is lost takes its part of a sharded state along: the others go back to the newest checkpoint."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rex_worker.protocol import Checkpointed, Failed, GroupLost, Stop
from tests.worker.ledger import Ledgers
from tests.worker.operator_double import Operator

pytestmark = pytest.mark.component

SCRIPT = Path(__file__).with_name("sharded_script.py")
ENDLESS = {"SAMPLES": "103", "EPOCHS": "100000", "PAUSE_S": "0.005"}


@pytest.fixture
def ledgers(tmp_path: Path) -> Ledgers:
    return Ledgers(tmp_path)


async def test_the_loss_of_a_worker_costs_no_more_than_a_checkpoint_interval(
    rex: Operator, ledgers: Ledgers, tmp_path: Path
) -> None:
    keep = {"REX_CHECKPOINT_DIR": str(tmp_path / "kept"), "REX_CHECKPOINT_EVERY": "6", **ENDLESS}
    a, b, c = [await rex.start(n, SCRIPT, **ledgers.variables(n, **keep)) for n in ("w0", "w1", "w2")]
    await rex.ready(a, b, c)
    await rex.form(1, {"w0": 5, "w1": 3, "w2": 4})
    await rex.until("two checkpoints", lambda: len(a.said(Checkpointed)) >= 2)
    a.signal(signal.SIGKILL)
    assert await rex.end_of(a) == -signal.SIGKILL
    safe = a.said(Checkpointed)[-1].step
    await rex.form(2, {"w2": 6, "w1": 3}, min_step=safe)
    (resumed,) = await rex.acknowledged(2, b, c)
    done = max(entry["step"] for entry in ledgers.kind("applied") if entry["generation"] == 1)
    assert safe < resumed <= done + 1
    assert b.said(GroupLost) and c.said(GroupLost)
    again = await rex.start("w0", SCRIPT, **ledgers.variables("again", **keep))
    await rex.ready(again)
    await rex.reached(resumed + 8, b, c)
    await rex.form(3, {"w2": 6, "w1": 3, "w0": 4}, min_step=safe)
    (joined,) = await rex.acknowledged(3, again, b, c)
    await rex.reached(joined + 2, again, b, c)
    ledgers.enough()
    assert await rex.ended(again, b, c) == [0, 0, 0]
    ledgers.check_exactly_once(103)
    assert len({tuple(end["parameters"]) for end in ledgers.kind("end")}) == 1
    pids = {entry["pid"] for entry in ledgers.kind("applied", "w1")}
    assert len(pids) == 1, "no restart"


async def test_without_a_checkpoint_the_loss_of_a_worker_ends_the_training_with_a_reason(
    rex: Operator, ledgers: Ledgers
) -> None:
    a, b = [await rex.start(n, SCRIPT, **ledgers.variables(n, **ENDLESS)) for n in ("w0", "w1")]
    await rex.ready(a, b)
    await rex.form(1, {"w0": 5, "w1": 3})
    await rex.reached(5, a, b)
    b.signal(signal.SIGKILL)
    assert await rex.end_of(b) == -signal.SIGKILL
    await rex.form(2, {"w0": 8})
    assert await rex.end_of(a) == 1
    (failed,) = a.said(Failed)
    assert "a worker was lost with its part" in failed.error and "spec.checkpoint" in failed.error


async def test_a_stopped_training_goes_on_with_another_number_of_workers(
    rex: Operator, ledgers: Ledgers, tmp_path: Path
) -> None:
    keep = {"REX_CHECKPOINT_DIR": str(tmp_path / "kept"), "REX_CHECKPOINT_EVERY": "1000", **ENDLESS}
    first = [await rex.start(n, SCRIPT, **ledgers.variables(n, **keep)) for n in ("w0", "w1")]
    await rex.ready(*first)
    await rex.form(1, {"w0": 5, "w1": 3})
    await rex.reached(7, *first)
    await rex.send(Stop(reason="suspended"), *first)
    assert await rex.ended(*first) == [0, 0]
    (committed,) = first[0].said(Checkpointed)
    names = ("w0", "w1", "w2")
    again = [await rex.start(n, SCRIPT, **ledgers.variables(f"{n}-again", **keep)) for n in names]
    await rex.ready(*again)
    await rex.form(2, {"w0": 5, "w1": 3, "w2": 1}, min_step=committed.step)
    assert await rex.acknowledged(2, *again) == {committed.step + 1}
    await rex.reached(committed.step + 5, *again)
    ledgers.enough()
    assert await rex.ended(*again) == [0, 0, 0]
    ledgers.check_exactly_once(103)


async def test_before_the_first_step_the_initial_weights_are_still_there(rex: Operator, ledgers: Ledgers) -> None:
    run = ENDLESS | {"PAUSE_BEFORE_S": "60"}
    a, b = [await rex.start(n, SCRIPT, **ledgers.variables(n, **ENDLESS)) for n in ("w0", "w1")]
    c = await rex.start("w2", SCRIPT, **ledgers.variables("w2", **run))
    await rex.ready(a, b, c)
    await rex.form(1, {"w2": 2, "w0": 5, "w1": 3})
    await rex.acknowledged(1, a, b, c)
    c.signal(signal.SIGKILL)  # it has not computed anything, so that nobody could apply a step
    assert await rex.end_of(c) == -signal.SIGKILL
    await rex.form(2, {"w1": 5, "w0": 4})
    assert await rex.acknowledged(2, a, b) == {1}
    await rex.reached(3, a, b)
    ledgers.enough()
    assert await rex.ended(a, b) == [0, 0]
    ledgers.check_exactly_once(103)
