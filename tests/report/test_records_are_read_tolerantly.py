"""A record is read whatever happened to it: torn, foreign, hostile or huge."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rex_operator.report import write_report
from rex_operator.report.reader import read_record
from rex_operator.report.record import MAX_ROWS, MAX_STEPS, MAX_WORKERS
from tests.report.records import plausible, write

WRONG: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, "text", "", -1, 0, 1e308, 2**80, float("nan"), [], [1], [None, "x"], {}, {"w0": "x"}, {"w0": 0}, [{}]]
)
SAMPLE = [line for index, line in enumerate(plausible()) if line["kind"] != "step" or index % 40 == 0]


def read(folder: Path, *lines: dict[str, Any] | str | bytes) -> Any:
    return read_record(write(folder, lines) / "record.jsonl")


def test_a_torn_last_line_is_set_aside(tmp_path: Path) -> None:
    lines: list[Any] = [*plausible()[:-1], '{"t": 20.1, "kind": "step", "st']
    record = read(tmp_path, *lines)
    assert record.set_aside == 1
    assert record.success is None
    assert record.steps.seen > 500


def test_lines_that_are_no_objects_are_set_aside(tmp_path: Path) -> None:
    record = read(
        tmp_path, "[1, 2]", "nonsense", b"\xff\xfe", "[" * 100_000, '{"kind": "step"}', '{"t": -1, "kind": "end"}'
    )
    assert record.set_aside == 6


def test_a_kind_of_tomorrow_is_passed_over(tmp_path: Path) -> None:
    record = read(tmp_path, {"t": 1, "kind": "of-tomorrow", "field": 1}, *plausible())
    assert record.set_aside == 0
    assert record.success is True


def test_numbers_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    step = {"t": 1, "kind": "step", "step": 1, "global_batch": 8, "loss": float("nan"), "goodput": float("inf")}
    (point,) = read(tmp_path, step).steps
    assert point.loss is None
    assert point.goodput is None


def test_a_line_longer_than_the_bound_is_passed_over(tmp_path: Path) -> None:
    record = read(tmp_path, "x" * 3_000_000, {"t": 2, "kind": "end", "success": False, "reason": "Failed"})
    assert record.set_aside == 1
    assert record.success is False


def test_a_huge_record_gives_a_bounded_picture(tmp_path: Path) -> None:
    workers = [f"w{index}" for index in range(200)]
    per_worker = dict.fromkeys(workers, 2)

    def lines() -> Any:
        for step in range(1, 4001):
            yield {"t": step, "kind": "step", "step": step, "global_batch": 400, "version": step // 3,
                   "local_batches": per_worker, "compute_s": per_worker, "step_s": 1}  # fmt: skip
            yield {"t": step, "kind": "decision", "decision": {"kind": "accepted", "step": step, "reason": "r"}}

    folder = write(tmp_path, lines())
    record = read_record(folder / "record.jsonl")
    assert len(record.steps) <= MAX_STEPS
    assert len(record.decisions) == MAX_ROWS
    assert record.decisions[0].step == 1
    assert record.decisions[-1].step == 4000
    assert len(record.stretches[0].local_batches) == MAX_WORKERS
    assert len(record.workers) == 200
    own = write_report(folder).stat().st_size - write_report(write(tmp_path, [])).stat().st_size
    assert own < 2_000_000


@settings(max_examples=30, deadline=None)
@given(faults=st.lists(st.tuples(st.integers(0, len(SAMPLE) - 1), st.integers(0, 30), WRONG), max_size=20))
def test_whatever_is_in_a_record_a_page_comes_out(
    tmp_path_factory: pytest.TempPathFactory, faults: list[tuple[int, int, Any]]
) -> None:
    lines = [dict(line) for line in SAMPLE]
    for index, field, value in faults:
        line = lines[index]
        inner = line["decision"] = dict(line["decision"]) if isinstance(line.get("decision"), dict) else {}
        target = inner if inner and field % 3 else line
        target[sorted(target)[field % len(target)]] = value
    folder = write(tmp_path_factory.mktemp("run"), [json.dumps(line) for line in lines])
    assert write_report(folder).read_text(encoding="utf-8").endswith("</html>\n")


def test_a_missing_record_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_report(tmp_path)
