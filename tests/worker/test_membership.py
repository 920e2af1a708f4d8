from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rex_worker.protocol import Drain, Leaving, Left
from rex_worker.protocol import GroupLost as GroupLostMessage
from tests.worker.ledger import SCRIPT, Ledgers
from tests.worker.operator_double import Operator

pytestmark = pytest.mark.component

PACED = {"REX_EMULATE": "1", "REX_EMULATE_SCALE": "0.5", "SAMPLES": "503", "EPOCHS": "10000"}
"""Trains until told that it is enough."""


@pytest.fixture
def ledgers(tmp_path: Path) -> Ledgers:
    return Ledgers(tmp_path)


async def test_a_newcomer_joins_without_a_restart_or_a_lost_step(rex: Operator, ledgers: Ledgers) -> None:
    a, b, c = [await rex.start(n, SCRIPT, **ledgers.variables(n, **PACED)) for n in ("w0", "w1", "w2")]
    await rex.ready(a, b, c)
    await rex.form(1, {"w0": 40, "w1": 20})
    await rex.reached(20, a, b)
    await rex.form(2, {"w0": 40, "w1": 20, "w2": 30})
    (joined,) = await rex.acknowledged(2, a, b, c)
    await rex.reached(joined + 20, a, b, c)
    ledgers.enough()
    assert await rex.ended(a, b, c) == [0, 0, 0]
    ledgers.check_exactly_once(503)
    ledgers.check_same_end("w0", "w1", "w2")
    assert not any(worker.said(GroupLostMessage) for worker in (a, b, c))
    assert min(report.step for report in c.steps()) == joined > 20
    steps = [report.step for report in a.steps()]
    assert steps == sorted(set(steps)), "nothing was done twice"


async def test_c_096_a_drained_rank_0_leaves_and_the_others_lose_nothing(rex: Operator, ledgers: Ledgers) -> None:
    a, b, c = [await rex.start(n, SCRIPT, **ledgers.variables(n, **PACED)) for n in ("w0", "w1", "w2")]
    await rex.ready(a, b, c)
    await rex.form(1, {"w0": 40, "w1": 20, "w2": 30})
    await rex.reached(10, a, b, c)
    await rex.send(Drain(reason="smaller"), a)
    await rex.form(2, {"w1": 20, "w2": 30}, a)
    assert await rex.ended(a) == [0]
    assert [left.reason for left in a.said(Left)] == ["drained"]
    ledgers.enough()
    assert await rex.ended(b, c) == [0, 0]
    ledgers.check_exactly_once(503)
    ledgers.check_same_end("w1", "w2")
    assert not any(worker.said(GroupLostMessage) for worker in (a, b, c)), "a planned change loses no step"


async def test_a_worker_told_to_go_stays_until_it_is_let_go(rex: Operator, ledgers: Ledgers) -> None:
    a, b = [await rex.start(n, SCRIPT, **ledgers.variables(n, **PACED)) for n in ("w0", "w1")]
    await rex.ready(a, b)
    await rex.form(1, {"w0": 40, "w1": 20})
    await rex.reached(10, a, b)
    b.signal(signal.SIGTERM)
    await rex.until("Leaving", lambda: bool(b.said(Leaving)))
    stayed = b.last_step
    await rex.reached(stayed + 5, a, b)
    await rex.form(2, {"w0": 40}, b)
    assert await rex.ended(b) == [0]
    ledgers.enough()
    assert await rex.ended(a) == [0]
    assert [left.reason for left in b.said(Left)] == ["drained"]
    ledgers.check_exactly_once(503)


@pytest.mark.parametrize("victim", ["w0", "w1"])
async def test_c_080_c_081_any_worker_may_be_killed(rex: Operator, ledgers: Ledgers, victim: str) -> None:
    names = ("w0", "w1", "w2")
    workers = {n: await rex.start(n, SCRIPT, **ledgers.variables(n, **PACED)) for n in names}
    await rex.ready(*workers.values())
    await rex.form(1, {"w0": 40, "w1": 20, "w2": 30})
    await rex.reached(15, *workers.values())
    lost = workers.pop(victim)
    lost.signal(signal.SIGKILL)
    # As an operator does it: between two epochs, where survivors wait for each other, only a membership tells them.
    assert await rex.ended(lost) == [-signal.SIGKILL]
    await rex.form(2, {name: 50 for name in workers})
    (step,) = await rex.acknowledged(2, *workers.values())
    await rex.reached(step + 15, *workers.values())
    ledgers.enough()
    assert await rex.ended(*workers.values()) == [0, 0]
    ledgers.check_exactly_once(503)
    ledgers.check_same_end(*workers)
    for worker in workers.values():
        assert len({entry["pid"] for entry in ledgers.kind("applied", worker.worker_id)}) == 1, "no restart"


async def test_a_frozen_worker_is_given_up_after_the_collective_time_out(rex: Operator, ledgers: Ledgers) -> None:
    # Within one long epoch: at an epoch's start workers meet in rank 0's store, where a long silence is no loss.
    one_epoch = PACED | {"SAMPLES": "90000"}
    a, b, c = [await rex.start(n, SCRIPT, **ledgers.variables(n, **one_epoch)) for n in ("w0", "w1", "w2")]
    await rex.ready(a, b, c)
    await rex.form(1, {"w0": 40, "w1": 20, "w2": 30}, collective_timeout_s=5)
    await rex.reached(15, a, b, c)
    a.signal(signal.SIGSTOP)
    await rex.until("GroupLost", lambda: bool(b.said(GroupLostMessage) and c.said(GroupLostMessage)))
    await rex.form(2, {"w1": 20, "w2": 30}, collective_timeout_s=20)
    await rex.acknowledged(2, b, c)
    ledgers.enough()
    assert await rex.ended(b, c) == [0, 0]
    ledgers.check_exactly_once(90000)
    ledgers.check_same_end("w1", "w2")


async def test_survivors_leave_a_frozen_worker_once_the_operator_has_named_the_next_group(
    rex: Operator, ledgers: Ledgers
) -> None:
    a, b, c = [await rex.start(n, SCRIPT, **ledgers.variables(n, **PACED)) for n in ("w0", "w1", "w2")]
    await rex.ready(a, b, c)
    await rex.form(1, {"w0": 40, "w1": 20, "w2": 30}, collective_timeout_s=20)
    await rex.reached(15, a, b, c)
    b.signal(signal.SIGSTOP)
    await rex.form(2, {"w0": 20, "w2": 30})
    await rex.acknowledged(2, a, c)
    b.signal(signal.SIGKILL)
    ledgers.enough()
    assert await rex.ended(a, c) == [0, 0]
    ledgers.check_exactly_once(503)
    ledgers.check_same_end("w0", "w2")


async def test_survivors_leave_a_rank_0_that_froze_where_they_meet_it(rex: Operator, ledgers: Ledgers) -> None:
    # While rank 0 lingers between two epochs the others wait for it in a store that it serves itself.
    run = {"EPOCHS": "10000", "SAMPLES": "55", "LINGER_S": "1.5"}
    a, b, c = [await rex.start(n, SCRIPT, **ledgers.variables(n, **run)) for n in ("w0", "w1", "w2")]
    await rex.ready(a, b, c)
    await rex.form(1, {"w0": 5, "w1": 3, "w2": 2}, collective_timeout_s=20)
    await rex.reached(6, a, b, c)
    a.signal(signal.SIGSTOP)
    await rex.form(2, {"w1": 5, "w2": 5})
    await rex.acknowledged(2, b, c)
    ledgers.enough()
    assert await rex.ended(b, c) == [0, 0]
    a.signal(signal.SIGKILL)
    ledgers.check_exactly_once(55)
    ledgers.check_same_end("w1", "w2")


async def test_a_busy_rank_0_is_no_lost_one(rex: Operator, ledgers: Ledgers) -> None:
    names = ("w0", "w1")
    a, b = [await rex.start(n, SCRIPT, **ledgers.variables(n, EPOCHS="2", LINGER_S="5", SAMPLES="1003")) for n in names]
    await rex.ready(a, b)
    await rex.form(1, {"w0": 300, "w1": 200}, collective_timeout_s=3)
    assert await rex.ended(a, b) == [0, 0]
    assert not a.said(GroupLostMessage) and not b.said(GroupLostMessage)
    ledgers.check_exactly_once(1003)


async def test_a_chain_of_changes_and_kills_uses_each_sample_once(rex: Operator, ledgers: Ledgers) -> None:
    """C-104 with real processes: 4 -> 3 by a kill, 3 -> 4 by a new life, 4 -> 2 as planned."""
    names = ("w0", "w1", "w2", "w3")
    workers = {n: await rex.start(n, SCRIPT, **ledgers.variables(n, **PACED)) for n in names}
    await rex.ready(*workers.values())
    await rex.form(1, dict.fromkeys(names, 10))
    await rex.reached(12, *workers.values())
    workers["w1"].signal(signal.SIGKILL)
    rest = [workers[n] for n in ("w0", "w2", "w3")]
    assert await rex.ended(workers["w1"]) == [-signal.SIGKILL]
    await rex.form(2, dict.fromkeys(("w0", "w2", "w3"), 10))
    again = await rex.start("w1", SCRIPT, **ledgers.variables("w1-again", **PACED))
    await rex.ready(again)
    (step,) = await rex.acknowledged(2, *rest)
    await rex.reached(step + 12, *rest)
    await rex.form(3, {"w2": 7, "w0": 13, "w1": 11, "w3": 9})
    (step,) = await rex.acknowledged(3, *rest, again)
    await rex.reached(step + 12, *rest, again)
    await rex.form(4, {"w1": 25, "w3": 15}, workers["w0"], workers["w2"])
    (step,) = await rex.acknowledged(4, workers["w3"], again)
    await rex.reached(step + 5, workers["w3"], again)
    ledgers.enough()
    assert await rex.ended(workers["w0"], workers["w2"], workers["w3"], again) == [0, 0, 0, 0]
    ledgers.check_exactly_once(503)
    ledgers.check_same_end("w3", "w1-again")


@pytest.mark.parametrize("step", [4, 6, 18], ids=["within an epoch", "at its end", "at the very end"])
async def test_a_worker_that_missed_a_step_takes_over_the_state_of_one_that_did_not(
    rex: Operator, ledgers: Ledgers, step: int
) -> None:
    run = {"EPOCHS": "3", "SAMPLES": "55"}
    a = await rex.start("w0", SCRIPT, **ledgers.variables("w0", **run))
    b = await rex.start("w1", SCRIPT, **ledgers.variables("w1", **run, BREAK_AT=str(step)))
    await rex.ready(a, b)
    await rex.form(1, {"w0": 7, "w1": 3})
    # The one that missed nothing learns it too, whether it is in a collective, at an epoch's start or at the end.
    await rex.until("GroupLost", lambda: bool(a.said(GroupLostMessage) and b.said(GroupLostMessage)))
    assert b.said(GroupLostMessage)[0].step == step - 1
    await rex.form(2, {"w1": 4, "w0": 6})
    assert await rex.ended(a, b) == [0, 0]
    ledgers.check_exactly_once(55)
    ledgers.check_same_end("w0", "w1")
    assert step not in {entry["step"] for entry in ledgers.kind("applied", "w1")}
    assert [entry["step"] for entry in ledgers.kind("applied", "w0")] == list(range(1, 19))


async def test_c_112_a_newcomer_at_an_epochs_end_has_the_groups_epoch_and_rate(rex: Operator, ledgers: Ledgers) -> None:
    run = {"EPOCHS": "10000", "SAMPLES": "55", "LINGER_S": "1.5"}
    a, b, c = [await rex.start(n, SCRIPT, **ledgers.variables(n, **run)) for n in ("w0", "w1", "w2")]
    await rex.ready(a, b, c)
    await rex.form(1, {"w0": 7, "w1": 3})
    await rex.reached(6, a, b)  # rank 0 lingers between two epochs
    await rex.form(2, {"w0": 7, "w1": 3, "w2": 5})
    (joined,) = await rex.acknowledged(2, a, b, c)
    await rex.reached(joined + 4, a, b, c)  # into the epoch after
    ledgers.enough()
    assert await rex.ended(a, b, c) == [0, 0, 0]
    ledgers.check_exactly_once(55)
    ledgers.check_same_end("w0", "w1", "w2")
    epochs = {name: {e["step"]: e["epoch"] for e in ledgers.kind("applied", name)} for name in ("w0", "w1", "w2")}
    assert epochs["w0"] == epochs["w1"]
    assert epochs["w2"].items() <= epochs["w0"].items()
