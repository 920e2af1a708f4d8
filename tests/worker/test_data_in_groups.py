"""Real workers with processes that read ahead: texts of unlike lengths, by index and as a stream, through changes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rex_worker.protocol import Drain, Ready
from tests.worker.ledger import Ledgers
from tests.worker.operator_double import Operator

pytestmark = [
    pytest.mark.component,
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

SCRIPT = Path(__file__).with_name("data_script.py")
PACED = {"REX_EMULATE": "1", "REX_EMULATE_SCALE": "0.2", "SAMPLES": "503", "EPOCHS": "10000"}


@pytest.fixture
def ledgers(tmp_path: Path) -> Ledgers:
    return Ledgers(tmp_path)


def readers(ledgers: Ledgers, name: str) -> set[int]:
    return {pid for entry in ledgers.kind("applied", name) for pid in entry["readers"]}


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("kind", [{}, {"STREAM": "1"}], ids=["map", "stream"])
async def test_c_104_changes_and_kills_use_each_sample_once(
    rex: Operator, ledgers: Ledgers, kind: dict[str, str]
) -> None:
    a, b, c = [await rex.start(n, SCRIPT, **ledgers.variables(n, **PACED, **kind)) for n in ("w0", "w1", "w2")]
    await rex.ready(a, b, c)
    assert {ready.dataset_size for ready in a.said(Ready)} == ({0} if kind else {503})
    await rex.form(1, {"w0": 40, "w1": 20})
    await rex.reached(8, a, b)
    await rex.form(2, {"w0": 15, "w1": 30, "w2": 21}, plan={"accumulation": 3, "passes": {"w1": 1}})
    (joined,) = await rex.acknowledged(2, a, b, c)
    await rex.reached(joined + 8, a, b, c)
    b.signal(signal.SIGKILL)
    assert await rex.ended(b) == [-signal.SIGKILL]
    await rex.form(3, {"w0": 30, "w2": 33})
    (lost,) = await rex.acknowledged(3, a, c)
    await rex.reached(lost + 8, a, c)
    await rex.send(Drain(reason="smaller"), c)
    await rex.form(4, {"w0": 50}, c)
    assert await rex.ended(c) == [0]
    ledgers.enough()
    assert await rex.ended(a) == [0]
    ledgers.check_exactly_once(503)
    for name in ("w0", "w1", "w2"):
        assert len(readers(ledgers, name)) == 1, f"{name}: one process, kept for the whole life"
        (reader,) = readers(ledgers, name)
        await rex.until_true("the end of a reading process", lambda pid=reader: gone(pid))  # type: ignore[misc]


@pytest.mark.parametrize("kind", [{}, {"STREAM": "1"}], ids=["map", "stream"])
async def test_c_100_uneven_shares_of_uneven_data_that_is_read_ahead(
    rex: Operator, ledgers: Ledgers, kind: dict[str, str]
) -> None:
    names = ("w0", "w1", "w2")
    workers = [await rex.start(n, SCRIPT, **ledgers.variables(n, SAMPLES="1003", EPOCHS="2", **kind)) for n in names]
    await rex.ready(*workers)
    await rex.form(1, {"w0": 100, "w1": 60, "w2": 40})
    assert await rex.ended(*workers) == [0, 0, 0]
    ledgers.check_exactly_once(1003)
    ledgers.check_same_end(*names)
    assert [r.local_batch for r in workers[0].steps()] == [*[100] * 5, 1] * 2
    assert [r.local_batch for r in workers[2].steps()] == [*[40] * 5, 1] * 2


async def test_c_108_an_evaluation_read_ahead_is_the_same_for_any_workers(rex: Operator, tmp_path: Path) -> None:
    found = []
    for generation, batches in enumerate(([40], [1, 39], [11, 9, 20]), 1):
        ledgers = Ledgers(tmp_path / str(generation))
        ledgers.folder.mkdir()
        names = [f"w{rank}" for rank in range(len(batches))]
        run = {"SAMPLES": "203", "EPOCHS": "1", "JUDGED": "1"}
        workers = [await rex.start(n, SCRIPT, **ledgers.variables(n, **run)) for n in names]
        await rex.ready(*workers)
        await rex.form(generation, dict(zip(names, batches, strict=True)))
        assert await rex.ended(*workers) == [0] * len(names)
        found += [tuple(entry["totals"]) for entry in ledgers.kind("totals")]
    assert len(found) == 6 and len(set(found)) == 1
    assert found[0][2] == 203.0


@pytest.mark.parametrize("apart", ["split", "length"])
async def test_c_109_streams_that_differ_between_workers_end_the_job_in_words(
    rex: Operator, ledgers: Ledgers, apart: str
) -> None:
    run = {"SAMPLES": "203", "EPOCHS": "2", "STREAM": "1", "APART": apart, "NUM_WORKERS": "0"}
    a, b = [await rex.start(n, SCRIPT, **ledgers.variables(n, **run)) for n in ("w0", "w1")]
    await rex.ready(a, b)
    await rex.form(1, {"w0": 30, "w1": 20})
    assert await rex.ended(a, b) == [1, 1]
    for worker in (a, b):
        assert "the workers read different data for the step at epoch 0+" in worker.text()
    steps = {entry["step"] for entry in ledgers.kind("applied")}
    assert steps == (set() if apart != "length" else {1, 2, 3, 4}), "nothing was trained on what differs"
