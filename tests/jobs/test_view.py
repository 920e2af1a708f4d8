"""What people see of a job: weighted, current, and complete."""

from __future__ import annotations

import pytest

from rex_operator.jobs import Send
from rex_worker.protocol import Membership, Metrics, Ready
from tests.jobs.desk import Desk, running


def test_c_139_loss_is_the_mean_over_samples() -> None:
    desk = running("w0", "w1", "w2", batch={"initial": 200, "max": 200})
    shares = {"w0": (100, 1.0), "w1": (60, 2.0), "w2": (40, 3.0)}
    for name, (share, loss) in shares.items():
        desk.say(name, desk.steps(name, 1, local_batch=share, loss=loss))
    assert desk.coordinator.view().loss == pytest.approx(1.7)


def test_a_diverged_loss_is_shown_as_such() -> None:
    desk = running("w0", "w1")
    desk.say("w0", desk.steps("w0", 1, loss=None, diverged=True))
    desk.run("w1", step=1)
    view = desk.coordinator.view()
    assert view.diverged
    assert view.loss is None


def test_c_136_late_and_doubled_reports_change_nothing() -> None:
    desk = running("w0", "w1")
    for step in (1, 2, 3):
        desk.run("w0", "w1", step=step)
    before = desk.coordinator.view()
    for step in (3, 1, 2):
        desk.run("w1", "w0", step=step)
    after = desk.coordinator.view()
    assert (after.step, after.samples, after.last_step) == (before.step, before.samples, before.last_step)


def test_progress_is_samples_over_the_whole() -> None:
    desk = Desk()
    desk.target("w0", "w1")
    desk.ready("w0", "w1", total=640)
    desk.run("w0", "w1", step=5)
    assert desk.coordinator.view().progress == pytest.approx(0.5)


def test_progress_is_unknown_without_a_length() -> None:
    desk = running("w0", "w1")
    desk.run("w0", "w1", step=5)
    assert desk.coordinator.view().progress is None


def test_metrics_are_kept_by_name_and_bounded() -> None:
    desk = running("w0", "w1")
    for i in range(200):
        desk.say("w0", Metrics(step=1, samples=1, values={f"m{i}": 1.0, "accuracy": i / 200}))
    assert desk.coordinator.view().metrics["accuracy"] == pytest.approx(199 / 200)
    assert len(desk.coordinator.view().metrics) <= 64


def test_c_138_a_silent_member_is_named() -> None:
    desk = running("w0", "w1", "w2")
    desk.hang_up("w1")
    assert desk.coordinator.view().stale == ("w1",)
    desk.hello("w1", generation=1, version=1)
    desk.say("w1", Ready())
    assert desk.coordinator.view().stale == ()


def test_c_089_every_member_is_told_the_same_of_each_generation() -> None:
    desk = running("w0", "w1", "w2")
    desk.gone("w0")
    desk.target("w1", "w2", "w3")
    desk.ready("w3")
    desk.wait(2)
    by_generation: dict[int, set[str]] = {}
    for action in desk.actions:
        if isinstance(action, Send) and isinstance(action.message, Membership):
            text = action.message.model_dump_json()
            by_generation.setdefault(action.message.generation, set()).add(text)
    assert len(by_generation) == 3
    assert all(len(texts) == 1 for texts in by_generation.values())
