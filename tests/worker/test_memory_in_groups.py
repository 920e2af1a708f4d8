"""Memory as a matter of the whole group: refused plans, sizes that fail later, and a script that cannot go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from rex_worker.protocol import EXIT_OUT_OF_MEMORY, Failed, GroupLost, OutOfMemory
from tests.worker.ledger import SCRIPT, Ledgers
from tests.worker.operator_double import Operator, Worker, make_plan

pytestmark = pytest.mark.component

PACED = {"REX_EMULATE": "1", "REX_EMULATE_SCALE": "0.05", "EPOCHS": "10000"}

SHRINKING = """
import torch
from rex_worker.devices import Pacer
from tests.worker import ledger_script

checks, real = 0, Pacer.check_memory

def check_memory(self, samples):
    global checks
    checks += 1
    if checks > 1000 and samples > 60:  # as when inputs grow longer: twice per pass it is asked
        raise RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED")
    real(self, samples)

Pacer.check_memory = check_memory
ledger_script.main()
"""

GREEDY_LOSS = """
import torch
from tests.worker import ledger_script

losses, real = 0, torch.nn.functional.mse_loss

def mse_loss(output, target):
    global losses
    losses += 1
    if losses == 20:
        torch.empty(2**60, dtype=torch.uint8)
    return real(output, target)

torch.nn.functional.mse_loss = mse_loss
ledger_script.main()
"""


def versions(worker: Worker) -> dict[int, int]:
    return {report.step: report.plan_version for report in worker.steps()}


async def test_c_171_a_plan_that_does_not_fit_on_one_worker_is_run_by_none(rex: Operator, tmp_path: Path) -> None:
    ledgers = Ledgers(tmp_path)
    run = {
        **PACED,
        "REX_EMULATE_SCALE": "0.2",
    }  # what w0 has more to do stands out from a busy machine
    a, b = [await rex.start(n, SCRIPT, **ledgers.variables(n, **run)) for n in ("w0", "w1")]
    await rex.ready(a, b)
    await rex.form(1, {"w0": 100, "w1": 50})
    await rex.acknowledged(1, a, b)
    await rex.send(make_plan(1, 2, {"w0": 300, "w1": 60}), a, b)  # an emulated t4 holds 192
    await rex.until("a refusal", lambda: bool(a.said(OutOfMemory)))
    (refusal,) = a.said(OutOfMemory)
    assert (refusal.plan_version, refusal.local_batch) == (2, 300) and "192 fit" in refusal.message
    await rex.reached(a.last_step + 10, a, b)
    assert set(versions(a).values()) == {1} and not b.said(OutOfMemory)
    await rex.send(make_plan(1, 3, {"w0": 300, "w1": 60}, accumulation=2), a, b)
    (last,) = await rex.acknowledged(3, a, b)
    await rex.reached(last + 10, a, b)
    ledgers.enough()
    assert await rex.ended(a, b) == [0, 0]
    assert versions(a) == versions(b) and set(versions(a).values()) == {1, 3}
    assert len(a.said(OutOfMemory)) == 1, "one word per refused plan"
    ledgers.check_exactly_once(1003)
    ledgers.check_same_end("w0", "w1")
    check_times(a, b)


def check_times(a: Worker, b: Worker) -> None:
    """Who comes last waits for nobody; communication is what all have in common."""
    ours, theirs = ({report.step: report for report in worker.steps()} for worker in (a, b))
    assert ours[1].comm_s is None and "first" in ours[1].marks
    common = sorted(set(ours) & set(theirs) - {1})
    assert all(ours[step].comm_s is not None and theirs[step].comm_s is not None for step in common)
    assert all(min(ours[step].wait_s, theirs[step].wait_s) < 1e-6 for step in common)
    assert sum(ours[step].wait_s for step in common) < sum(theirs[step].wait_s for step in common), "w0 has more to do"
    assert all(report.peak_bytes == 0 for report in a.steps()), "a CPU has no memory of its own to tell of"


async def test_c_171_a_size_that_ran_500_steps_and_fails_on_one_worker_voids_the_step_for_all(
    rex: Operator, tmp_path: Path
) -> None:
    ledgers = Ledgers(tmp_path)
    run = {**PACED, "REX_EMULATE_SCALE": "0.01"}
    a = await rex.start("w0", SHRINKING, **ledgers.variables("w0", **run))
    b = await rex.start("w1", SCRIPT, **ledgers.variables("w1", **run))
    await rex.ready(a, b)
    await rex.form(1, {"w0": 100, "w1": 50})
    await rex.until("OutOfMemory", lambda: bool(a.said(OutOfMemory)))
    await rex.reached(a.last_step + 30, a, b)
    ledgers.enough()
    assert await rex.ended(a, b) == [0, 0]
    (report,) = a.said(OutOfMemory)
    assert (report.plan_version, report.local_batch) == (1, 100) and "CUDNN_STATUS_ALLOC_FAILED" in report.message
    assert not b.said(OutOfMemory) and not a.said(GroupLost) and not b.said(GroupLost)
    ledgers.check_exactly_once(1003)
    ledgers.check_same_end("w0", "w1")
    full = [entry for entry in ledgers.kind("batch", "w0") if len(entry["indices"]) == 100]
    retried = max(entry["step"] for entry in full)
    assert retried >= 500
    passes = [len(entry["indices"]) for entry in ledgers.kind("batch", "w0") if entry["step"] == retried]
    assert passes == [100, 50, 50], "C-119: the same share, in smaller passes"
    peers = [len(entry["indices"]) for entry in ledgers.kind("batch", "w1") if entry["step"] == retried]
    assert peers == [50, 50], "the peer took the step again with it"


async def test_c_171_memory_that_is_full_in_the_loss_costs_one_worker_and_not_the_job(
    rex: Operator, tmp_path: Path
) -> None:
    ledgers = Ledgers(tmp_path)
    run = {"EPOCHS": "3"}
    a = await rex.start("w0", GREEDY_LOSS, **ledgers.variables("w0", **run))
    b = await rex.start("w1", SCRIPT, **ledgers.variables("w1", **run))
    await rex.ready(a, b)
    await rex.form(1, {"w0": 40, "w1": 20})
    assert await rex.end_of(a) == EXIT_OUT_OF_MEMORY
    (report,) = a.said(OutOfMemory)
    assert (report.plan_version, report.local_batch) == (1, 40)
    assert "can't allocate memory" in a.said(Failed)[0].error
    await rex.until("the loss of the group", lambda: bool(b.said(GroupLost)))
    await rex.form(2, {"w1": 30})
    assert await rex.end_of(b) == 0
    ledgers.check_exactly_once(1003)


async def test_a_sharded_group_forms_anew_when_a_worker_runs_out_of_memory(rex: Operator, tmp_path: Path) -> None:
    """The others wait in the collectives of the pass that failed, so the step cannot be voided by a vote."""
    ledgers, script = Ledgers(tmp_path), SCRIPT.with_name("sharded_script.py")
    run = {"REX_EMULATE": "1", "REX_EMULATE_SCALE": "0.01", "SAMPLES": "503", "EPOCHS": "2"}
    a, b = [await rex.start(n, script, **ledgers.variables(n, **run)) for n in ("w0", "w1")]
    await rex.ready(a, b)
    await rex.form(1, {"w0": 300, "w1": 50})
    await rex.until("the loss of the group", lambda: bool(a.said(GroupLost) and b.said(GroupLost)))
    (report,) = a.said(OutOfMemory)
    assert report.local_batch == 300 and not b.said(OutOfMemory)
    await rex.form(2, {"w0": 300, "w1": 50})
    assert await rex.ended(a, b) == [0, 0]
    ledgers.check_exactly_once(503)
    assert max(len(entry["indices"]) for entry in ledgers.kind("batch", "w0") if entry["generation"] == 2) == 150
