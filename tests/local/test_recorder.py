"""The record of a run: thinned where it may be, complete where it must be, readable after a crash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rex_operator.local.recorder import Recorder
from rex_operator.report.reader import read_record
from rex_worker.protocol import Member, Membership, Metrics
from tests.cli.test_explain import DECISION
from tests.jobs.desk import Desk, running


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def drive(recorder: Recorder, clock: Clock, desk: Desk, steps: int, seconds: float) -> None:
    for step in range(1, steps + 1):
        clock.now += seconds
        desk.run("w0", "w1", step=step)
        recorder.step(desk.coordinator.view())


def test_steps_are_thinned(tmp_path: Path) -> None:
    clock = Clock()
    recorder = Recorder(tmp_path / "record.jsonl", clock)
    drive(recorder, clock, running("w0", "w1"), steps=1000, seconds=0.01)
    recorder.close()
    written = lines(tmp_path / "record.jsonl")
    assert 40 <= len(written) <= 51
    step = written[-1]
    assert set(step["compute_s"]) == {"w0", "w1"}
    assert step["global_batch"] == sum(step["local_batches"].values())


def test_a_long_run_is_written_down_ever_more_sparsely(tmp_path: Path) -> None:
    clock = Clock()
    clock.now = 86_400.0
    recorder = Recorder(tmp_path / "record.jsonl", clock)
    drive(recorder, clock, running("w0", "w1"), steps=600, seconds=0.2)
    recorder.close()
    assert len(lines(tmp_path / "record.jsonl")) <= 120 / (86_400 / 5000) + 1


def test_a_step_is_written_once(tmp_path: Path) -> None:
    clock, desk = Clock(), running("w0", "w1")
    recorder = Recorder(tmp_path / "record.jsonl", clock)
    drive(recorder, clock, desk, steps=1, seconds=1)
    for _ in range(10):
        clock.now += 1
        recorder.step(desk.coordinator.view())
    recorder.close()
    assert len(lines(tmp_path / "record.jsonl")) == 1


def test_memberships_and_plans_are_written_once_though_sent_to_many(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "record.jsonl", Clock())
    desk = running("w0", "w1")
    member = [Member(worker_id=f"w{i}", incarnation=f"i{i}", address="127.0.0.1", store_port=1) for i in range(2)]
    message = Membership(generation=1, members=member, plan=desk.plan)
    for _ in range(5):
        recorder.membership(message)
        recorder.plan(message.plan)
    recorder.close()
    assert [line["kind"] for line in lines(tmp_path / "record.jsonl")] == ["membership", "plan"]


def test_every_decision_is_written_once_also_over_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    decisions = [DECISION.model_copy(update={"step": step}) for step in range(3)]
    recorder = Recorder(file, Clock())
    assert recorder.decisions(decisions[:2]) == decisions[:2]
    assert recorder.decisions(decisions) == decisions[2:]
    assert recorder.decisions(decisions) == []
    recorder.close()
    later = Recorder(file, Clock())
    later.remember(decisions)
    newest = DECISION.model_copy(update={"step": 9})
    assert later.decisions([*decisions[1:], newest]) == [newest]
    later.close()
    assert [line["decision"]["step"] for line in lines(file)] == [0, 1, 2, 9]


def test_a_torn_last_line_does_not_take_the_next_one_with_it(tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    file.write_text('{"t": 0, "kind": "start"}\n{"t": 1, "ki')
    recorder = Recorder(file, Clock())
    recorder.event("resumed", "on we go")
    recorder.close()
    assert json.loads(file.read_text().splitlines()[-1])["message"] == "on we go"


def test_what_is_written_is_what_the_report_reads(tmp_path: Path) -> None:
    file, clock = tmp_path / "record.jsonl", Clock()
    recorder = Recorder(file, clock)
    recorder.write("start", job="digits", devices={"w0": "a100", "w1": "t4"}, resumed=False)
    drive(recorder, clock, running("w0", "w1"), steps=5, seconds=1)
    recorder.metrics(Metrics(step=5, samples=320, values={"accuracy": 0.9}))
    recorder.decisions([DECISION])
    recorder.write("end", success=True, reason="Finished", message="done", summary={})
    recorder.close()
    record = read_record(file)
    assert record.set_aside == 0
    assert record.devices == {"w0": "a100", "w1": "t4"}
    assert record.best["accuracy"] == 0.9
    assert record.success is True
    (decision,) = record.decisions
    assert decision.verdict == "accepted"
    assert decision.evidence is not None
    assert decision.evidence.n_trial == 82
