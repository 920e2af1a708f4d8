from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from rex_worker.protocol import Checkpointed, CheckpointFailed, Failed, Left, Stop
from tests.worker.ledger import SCRIPT, Ledgers
from tests.worker.operator_double import Operator

pytestmark = pytest.mark.component

PACED = {"REX_EMULATE": "1", "REX_EMULATE_SCALE": "0.3", "SAMPLES": "503", "EPOCHS": "10000"}

FAST_DISK = """
from rex_worker.keeping import Keeper
from tests.worker import ledger_script

real = Keeper.keep_if_due

def keep_if_due(self, replica, group):
    real(self, replica, group)
    self.flush()  # else a busy machine's disk may lag behind by more than an interval, which is no fault

Keeper.keep_if_due = keep_if_due
ledger_script.main()
"""


@pytest.fixture
def ledgers(tmp_path: Path) -> Ledgers:
    return Ledgers(tmp_path)


async def test_c_120_stop_and_resume_with_another_world_size(rex: Operator, ledgers: Ledgers, tmp_path: Path) -> None:
    keep = {"REX_CHECKPOINT_DIR": str(tmp_path / "kept"), "REX_CHECKPOINT_EVERY": "1000", **PACED}
    first = [await rex.start(n, SCRIPT, **ledgers.variables(n, **keep)) for n in ("w0", "w1", "w2")]
    await rex.ready(*first)
    await rex.form(1, {"w0": 20, "w1": 10, "w2": 13})
    await rex.reached(20, *first)
    await rex.send(Stop(reason="suspended"), *first)
    assert await rex.ended(*first) == [0, 0, 0]
    assert {left.reason for worker in first for left in worker.said(Left)} == {"stopped"}
    (committed,) = first[0].said(Checkpointed)
    (step,) = {left.step for worker in first for left in worker.said(Left)}
    assert committed.step == step and not committed.final

    again = await rex.start("w0", SCRIPT, **ledgers.variables("again", **keep))
    await rex.ready(again)
    await rex.form(2, {"w0": 37}, min_step=step)
    assert await rex.acknowledged(2, again) == {step + 1}
    await rex.reached(step + 30, again)
    ledgers.enough()
    assert await rex.ended(again) == [0]
    ledgers.check_exactly_once(503)


async def test_the_loss_of_all_workers_costs_no_more_than_a_checkpoint_interval(
    rex: Operator, ledgers: Ledgers, tmp_path: Path
) -> None:
    keep = {"REX_CHECKPOINT_DIR": str(tmp_path / "kept"), "REX_CHECKPOINT_EVERY": "10", **PACED}
    first = [await rex.start(n, FAST_DISK, **ledgers.variables(n, **keep)) for n in ("w0", "w1")]
    await rex.ready(*first)
    await rex.form(1, {"w0": 20, "w1": 10})
    await rex.until("a checkpoint", lambda: len(first[0].said(Checkpointed)) >= 2)
    for worker in first:
        worker.signal(signal.SIGKILL)
    assert await rex.ended(*first) == [-9, -9]
    done = max(entry["step"] for entry in ledgers.kind("applied"))
    least = max(message.step for message in first[0].said(Checkpointed))
    again = [await rex.start(n, SCRIPT, **ledgers.variables(f"{n}-again", **keep)) for n in ("w0", "w1")]
    await rex.ready(*again)
    await rex.form(2, {"w0": 20, "w1": 10}, min_step=least)
    (resumed,) = await rex.acknowledged(2, *again)
    assert done - 10 < resumed <= done + 1
    await rex.reached(done + 5, *again)  # beyond all that the first life did
    ledgers.enough()
    assert await rex.ended(*again) == [0, 0]
    ledgers.check_exactly_once(503)


async def test_c_116_a_vanished_checkpoint_ends_the_job_instead_of_starting_over(
    rex: Operator, ledgers: Ledgers, tmp_path: Path
) -> None:
    workers = [
        await rex.start(n, SCRIPT, **ledgers.variables(n, **PACED), REX_CHECKPOINT_DIR=str(tmp_path / n))
        for n in ("w0", "w1")
    ]
    await rex.ready(*workers)
    await rex.form(1, {"w0": 20, "w1": 10}, min_step=400)
    assert await rex.ended(*workers) == [1, 1]
    for worker in workers:
        (failed,) = worker.said(Failed)
        assert "checkpoint of step 400 was committed, but no usable checkpoint was found" in failed.error
    assert not ledgers.kind("applied")


async def test_c_113_a_damaged_newest_one_ends_no_job_that_has_an_older_one(
    rex: Operator, ledgers: Ledgers, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    keep = {"REX_CHECKPOINT_DIR": str(kept), "REX_CHECKPOINT_EVERY": "5", "SAMPLES": "50", "EPOCHS": "3"}
    first = await rex.start("w0", SCRIPT, **ledgers.variables("first", **keep))
    await rex.ready(first)
    await rex.form(1, {"w0": 10})
    assert await rex.ended(first) == [0]
    committed = max(message.step for message in first.said(Checkpointed))
    (kept / f"step-{committed:012d}-final" / "part-00000.safetensors").write_bytes(b"torn")
    shutil.rmtree(kept / f"step-{committed:012d}", ignore_errors=True)
    older = max(int(path.name.split("-")[1]) for path in kept.iterdir() if not path.name.endswith("-final"))
    again = [await rex.start(n, SCRIPT, **ledgers.variables(f"{n}-again", **keep)) for n in ("w0", "w1")]
    await rex.ready(*again)
    await rex.form(2, {"w0": 5, "w1": 5}, min_step=committed)
    assert await rex.ended(*again) == [0, 0]
    (told,) = again[0].said(CheckpointFailed)
    assert (told.step, told.resumed) == (committed, older) and "part-00000.safetensors is not what was" in told.message
    assert not again[1].said(CheckpointFailed)
    applied = [entry["step"] for entry in ledgers.kind("applied", "w0-again")]
    assert applied == list(range(older + 1, 16))


async def test_c_106_stopping_around_an_epoch_end_changes_nothing(
    rex: Operator, ledgers: Ledgers, tmp_path: Path
) -> None:
    """Resume from checkpoints of the step before an epoch's end, at it and after it: the rest is always the same."""
    run = {"SAMPLES": "50", "EPOCHS": "3", "REX_CHECKPOINT_KEEP": "100"}
    whole, resumed = {}, {}
    for step in (4, 5, 6, 10):  # each a job of one worker
        name, kept = f"whole-{step}", {"REX_CHECKPOINT_DIR": str(tmp_path / f"whole-{step}")}
        every = {"REX_CHECKPOINT_EVERY": str(step)}
        whole[step] = await rex.start(name, SCRIPT, **ledgers.variables(name, **run), **kept, **every)
    await rex.ready(*whole.values())
    for worker in whole.values():
        await rex.form(1, {worker.worker_id: 10})
    assert await rex.ended(*whole.values()) == [0, 0, 0, 0]
    end = ledgers.kind("end", "whole-4")[0]
    assert end["step"] == 15
    for step in whole:
        name, kept = f"from-{step}", {"REX_CHECKPOINT_DIR": str(tmp_path / f"from-{step}")}
        place = f"step-{step:012d}"
        shutil.copytree(tmp_path / f"whole-{step}" / place, tmp_path / name / place)
        resumed[step] = await rex.start(name, SCRIPT, **ledgers.variables(name, **run), **kept)
    await rex.ready(*resumed.values())
    for step, worker in resumed.items():
        await rex.form(1, {worker.worker_id: 10}, min_step=step)
    assert await rex.ended(*resumed.values()) == [0, 0, 0, 0]
    for step, worker in resumed.items():
        assert ledgers.kind("end", worker.worker_id)[0] == ledgers.kind("end", f"whole-{step}")[0], (
            "same steps, same weights, same rate"
        )
        applied = [entry["step"] for entry in ledgers.kind("applied", worker.worker_id)]
        assert applied == list(range(step + 1, 16))
    final = tmp_path / "whole-4" / "step-000000000015-final" / "manifest.json"
    assert json.loads(final.read_text())["samples"] == 150
