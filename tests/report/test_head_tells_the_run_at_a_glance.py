"""The figures at the head of a report are those of the run."""

from pathlib import Path
from typing import Any

import pytest

from rex_operator.report import write_report
from rex_operator.report.reader import read_record
from rex_operator.report.summary import Summary, summarise
from tests.report.records import plausible, write


def summary(folder: Path, lines: list[dict[str, Any]]) -> Summary:
    return summarise(read_record(write(folder, lines) / "record.jsonl"))


def steps(version: int, count: int, local: dict[str, int], took: float, start: float = 0.0) -> list[dict[str, Any]]:
    batch = sum(local.values())
    return [
        {
            "t": start + took * index,
            "kind": "step",
            "step": index + 1,
            "samples": batch * (index + 1),
            "version": version,
            "global_batch": batch,
            "local_batches": local,
            "step_s": took,
            "compute_s": {worker: 0.001 * share for worker, share in local.items()},
        }
        for index in range(count)
    ]


def test_speed_is_compared_with_the_first_even_plan(tmp_path: Path) -> None:
    lines = steps(1, 20, {"w0": 10, "w1": 10}, 0.2) + steps(2, 20, {"w0": 30, "w1": 10}, 0.1, start=10)
    assert summary(tmp_path, lines).speed_up == pytest.approx((40 / 0.1) / (20 / 0.2))


def test_the_short_step_at_an_epochs_end_moves_nothing(tmp_path: Path) -> None:
    local = {"w0": 10, "w1": 10}
    lines = steps(1, 20, local, 0.2) + steps(2, 20, {"w0": 30, "w1": 10}, 0.1, start=10)
    short = {**lines[-1], "global_batch": 3, "local_batches": {"w0": 2, "w1": 1}, "step_s": 9.0}
    assert summary(tmp_path, [*lines, short]).speed_up == pytest.approx(4.0)


def test_a_group_of_another_size_is_not_compared(tmp_path: Path) -> None:
    lines = (
        steps(1, 20, {"w0": 10, "w1": 10}, 0.2)
        + steps(2, 20, {"w0": 30, "w1": 10}, 0.1, start=10)
        + steps(3, 20, {"w0": 40}, 0.4, start=20)
    )
    assert summary(tmp_path, lines).speed_up == pytest.approx(4.0)


def test_a_run_that_never_left_its_first_plan_claims_no_speed_up(tmp_path: Path) -> None:
    found = summary(tmp_path, steps(1, 20, {"w0": 10, "w1": 10}, 0.2))
    assert found.speed_up is None
    assert found.plan_changes == 0


def test_verdicts_are_counted(tmp_path: Path) -> None:
    found = summary(tmp_path, plausible())
    assert [found.verdicts[name] for name in ("accepted", "rejected", "inconclusive", "rebalanced")] == [1, 1, 1, 1]
    assert found.spread_before is not None
    assert found.spread_after is not None
    assert found.spread_after < found.spread_before


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ([{"t": 30, "kind": "end", "success": True, "reason": "Finished", "message": ""}], "Succeeded"),
        ([{"t": 30, "kind": "end", "success": False, "reason": "BudgetUsedUp", "message": ""}], "BudgetUsedUp"),
        ([{"t": 30, "kind": "end", "success": False, "reason": "Interrupted", "message": ""}], "Interrupted"),
        (
            [
                {"t": 30, "kind": "end", "success": False, "reason": "Interrupted", "message": ""},
                {"t": 30, "kind": "start", "job": "digits", "devices": {}, "resumed": True},
            ],
            "Not finished",
        ),
        ([], "Not finished"),
    ],
)
def test_the_end_is_told(tmp_path: Path, end: list[dict[str, Any]], said: str) -> None:
    html = write_report(write(tmp_path, plausible()[:-1] + end)).read_text(encoding="utf-8")
    assert f">{said}</span></h1>" in html


def test_an_empty_record_gives_a_page_that_says_so(tmp_path: Path) -> None:
    html = write_report(write(tmp_path, [])).read_text(encoding="utf-8")
    assert "The planner decided nothing in this run." in html
    assert "Not finished" in html


def test_a_plan_that_ran_only_a_short_step_is_drawn_as_it_was_issued(tmp_path: Path) -> None:
    plan = {"t": 9, "kind": "plan", "version": 2, "global_batch": 40, "local_batches": {"w0": 30, "w1": 10}}
    (short,) = steps(2, 1, {"w0": 3, "w1": 1}, 0.1, start=10)
    record = read_record(write(tmp_path, [*steps(1, 5, {"w0": 10, "w1": 10}, 0.1), plan, short]) / "record.jsonl")
    assert record.stretches[-1].global_batch == 40
    assert record.stretches[-1].local_batches == {"w0": 30, "w1": 10}
    assert summarise(record).plan_changes == 1
