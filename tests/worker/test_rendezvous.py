from __future__ import annotations

from pathlib import Path

import pytest

from rex_worker.protocol import GroupLost as GroupLostMessage
from rex_worker.protocol import Member, Membership
from tests.cluster.ports import quiet_port
from tests.worker.ledger import SCRIPT, Ledgers
from tests.worker.operator_double import Nursery, Operator, make_plan, serving

pytestmark = pytest.mark.component

PACED = {"REX_EMULATE": "1", "REX_EMULATE_SCALE": "0.5", "SAMPLES": "503", "EPOCHS": "10000"}


@pytest.fixture
def ledgers(tmp_path: Path) -> Ledgers:
    return Ledgers(tmp_path)


async def test_c_084_workers_that_start_before_the_operator_wait_for_it(
    ledgers: Ledgers, tmp_path: Path, nursery: Nursery
) -> None:
    rex = Operator(tmp_path, nursery)
    rex.port = quiet_port()
    try:
        a, b = [await rex.start(n, SCRIPT, **ledgers.variables(n, SAMPLES="55", EPOCHS="2")) for n in ("w0", "w1")]
        await rex.until_true(
            "both have met a closed port", lambda: all("not reachable" in worker.text() for worker in (a, b))
        )
        async with serving(rex, rex.port):
            await rex.ready(a, b)
            await rex.form(1, {"w0": 7, "w1": 3})
            assert await rex.ended(a, b) == [0, 0]
        ledgers.check_exactly_once(55)
    finally:
        await rex.clear()


async def test_c_084_a_group_whose_rank_0_cannot_be_reached_is_left_for_the_next(
    rex: Operator, ledgers: Ledgers
) -> None:
    a, b = [await rex.start(n, SCRIPT, **ledgers.variables(n, SAMPLES="55", EPOCHS="2")) for n in ("w0", "w1")]
    await rex.ready(a, b)
    nobody = Member(worker_id="w9", incarnation="gone", address="not-yet-there.invalid", store_port=quiet_port())
    there = [
        Member(worker_id=w.worker_id, incarnation=h.incarnation, address=h.address, store_port=h.store_port)
        for w in (a, b)
        for h in w.hellos
    ]
    shares = {"w9": 1, "w0": 5, "w1": 4}
    await rex.send(Membership(generation=1, members=[nobody, *there], plan=make_plan(1, 1, shares)), a, b)
    await rex.until_true("both look for it", lambda: all("not reachable" in worker.text() for worker in (a, b)))
    await rex.form(2, {"w0": 7, "w1": 3})
    assert await rex.ended(a, b) == [0, 0]
    ledgers.check_exactly_once(55)
    ledgers.check_same_end("w0", "w1")


async def test_c_090_twelve_workers_that_notice_a_loss_at_different_moments_meet_again(
    rex: Operator, ledgers: Ledgers
) -> None:
    names = [f"w{place}" for place in range(12)]
    workers = {n: await rex.start(n, SCRIPT, **ledgers.variables(n, **PACED)) for n in names}
    await rex.ready(*workers.values())
    await rex.form(1, dict.fromkeys(names, 10))
    await rex.reached(3, *workers.values())
    lost = workers.pop("w5")
    lost.signal(9)
    assert await rex.ended(lost) == [-9]
    await rex.form(2, {n: 10 for n in workers})
    assert len(await rex.acknowledged(2, *workers.values())) == 1
    ledgers.enough()
    assert await rex.ended(*workers.values()) == [0] * 11
    ledgers.check_exactly_once(503)
    ledgers.check_same_end(*workers)


@pytest.mark.parametrize(
    ("busy", "variables", "shares"),
    [
        # The one with the large share computes while the other waits in the all-reduce.
        ("computing, and waiting for it", {"REX_EMULATE": "1", "REX_EMULATE_SCALE": "3"}, {"w0": 300, "w1": 2}),
        ("saving", {"REX_EMULATE": "1", "REX_CHECKPOINT_EVERY": "1"}, {"w0": 20, "w1": 10}),
        ("between epochs", {"LINGER_S": "1"}, {"w0": 302, "w1": 201}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_c_093_a_newcomer_gets_the_groups_state_whatever_the_others_do(
    rex: Operator, ledgers: Ledgers, tmp_path: Path, busy: str, variables: dict[str, str], shares: dict[str, int]
) -> None:
    run = {"SAMPLES": "503", "EPOCHS": "10000", **variables, "REX_CHECKPOINT_DIR": str(tmp_path / "kept")}
    a, b, c = [await rex.start(n, SCRIPT, **ledgers.variables(n, **run)) for n in ("w0", "w1", "w2")]
    await rex.ready(a, b, c)
    await rex.form(1, shares)
    await rex.reached(2, b)
    await rex.form(2, {"w0": 10, "w2": 12, "w1": 8})
    (step,) = await rex.acknowledged(2, a, b, c)
    await rex.reached(step + 1, a, b, c)
    ledgers.enough()
    assert await rex.ended(a, b, c) == [0, 0, 0]
    ledgers.check_exactly_once(503)
    ledgers.check_same_end("w0", "w1", "w2")
    assert not any(worker.said(GroupLostMessage) for worker in (a, b, c))
