"""Checkpoints are taken behind the training's back: no disk holds it up, and no failure of one ends it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rex_worker.checkpoint import CheckpointFolder
from rex_worker.environment import Environment
from rex_worker.group import Group
from rex_worker.keeping import Keeper
from rex_worker.link import AloneLink
from rex_worker.protocol import Checkpointed, CheckpointFailed, Message
from rex_worker.replica import Progress, Replica
from rex_worker.sampler import Position
from rex_worker.staging import Snapshot


class Ear(AloneLink):
    """A link that listens."""

    def __init__(self) -> None:
        super().__init__(Environment.read({}))
        self.heard: list[Message] = []

    def send(self, message: Message) -> None:
        self.heard.append(message)

    def steps(self, kind: type[Checkpointed] | type[CheckpointFailed]) -> list[int]:
        return [message.step for message in self.heard if isinstance(message, kind)]


class SlowFolder(CheckpointFolder):
    """Its disk takes its time, until it may go on."""

    def __init__(self, path: Path, keep: int = 10) -> None:
        super().__init__(path, keep)
        self.may_go_on = threading.Event()
        self.begun = threading.Event()

    def save(self, taken: Snapshot, final: bool = False) -> None:
        self.begun.set()
        assert self.may_go_on.wait(60)
        super().save(taken, final)


def rank(number: int = 0) -> Group:
    return Group(4, number, 1, torch.device("cpu"), None, 60.0, lambda: False)


class Run:
    """A replica that is made to stand at one step after the other."""

    def __init__(self, folder: CheckpointFolder, every: int = 10) -> None:
        self.link = Ear()
        self.keeper = Keeper(folder, every, self.link)
        self.model = torch.nn.Linear(3, 3)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.replica = Replica(self.model, optimizer, None, Progress(Position(7)), 10)
        self.group = rank()

    def stand_at(self, step: int) -> None:
        torch.nn.init.constant_(self.model.weight, float(step))
        self.replica.progress = replace(self.replica.progress, step=step, samples=step * 10)

    def reach(self, step: int) -> None:
        self.stand_at(step)
        self.keeper.keep_if_due(self.replica, self.group)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowFolder]:
    folder = SlowFolder(tmp_path)
    yield folder
    folder.may_go_on.set()


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def test_a_slow_disk_holds_nobody_up_and_of_those_that_wait_the_newest_is_written(slow: SlowFolder) -> None:
    run = Run(slow)
    run.reach(10)
    assert slow.begun.wait(60)
    for step in range(11, 51):
        run.reach(step)  # would never return if it waited for the disk
    assert run.keeper.just_saved() and not run.keeper.just_saved()
    slow.may_go_on.set()
    run.keeper.flush()
    assert run.link.steps(Checkpointed) == [10, 50]
    loaded, step = slow.load_newest() or ({}, 0)
    assert step == 50 and torch.equal(loaded["model"]["weight"], torch.full((3, 3), 50.0))


def test_what_is_being_written_is_not_touched_by_later_copies(slow: SlowFolder) -> None:
    run = Run(slow)
    run.reach(10)
    assert slow.begun.wait(60)
    run.reach(20)
    run.reach(30)
    slow.may_go_on.set()
    run.keeper.flush()
    shutil.rmtree(slow.path / "step-000000000030")
    loaded, step = slow.load_newest() or ({}, 0)
    assert step == 10 and torch.equal(loaded["model"]["weight"], torch.full((3, 3), 10.0))


def test_before_an_end_everything_is_written_and_nothing_twice(tmp_path: Path) -> None:
    run = Run(CheckpointFolder(tmp_path, keep=10))
    run.reach(10)
    run.keeper.keep_now(run.replica, run.group)
    run.stand_at(13)
    run.keeper.keep_now(run.replica, run.group)
    run.keeper.keep_final(run.replica, run.group)
    assert run.link.steps(Checkpointed) == [10, 13, 13]
    assert names(tmp_path) == ["step-000000000010", "step-000000000013", "step-000000000013-final"]


def test_only_rank_0_writes_what_all_have(tmp_path: Path) -> None:
    run = Run(CheckpointFolder(tmp_path, keep=10))
    run.group = rank(1)
    run.reach(10)
    run.keeper.keep_now(run.replica, run.group)
    run.keeper.keep_final(run.replica, run.group)
    assert names(tmp_path) == [] and not run.link.heard


@pytest.mark.parametrize("trouble", ["removed", "a file in its place"])
def test_a_volume_that_goes_away_ends_no_training_and_is_reported(tmp_path: Path, trouble: str) -> None:
    path = tmp_path / "kept"
    run = Run(CheckpointFolder(path, keep=10))
    run.reach(10)
    run.keeper.flush()
    path.rename(tmp_path / "away")
    if trouble == "a file in its place":
        path.touch()
    run.reach(20)
    run.keeper.flush()
    assert run.link.steps(Checkpointed) == [10] and run.link.steps(CheckpointFailed) == [20]
    (failed,) = [message for message in run.link.heard if isinstance(message, CheckpointFailed)]
    assert ("No such file" if trouble == "removed" else "Not a directory") in failed.message
    run.keeper.keep_now(run.replica, run.group)  # tries again, as step 20 is not safe
    assert run.link.steps(CheckpointFailed) == [20, 20]
    with pytest.raises(OSError, match=r"No such file|Not a directory"):
        run.keeper.keep_final(run.replica, run.group)
    path.unlink(missing_ok=True)
    (tmp_path / "away").rename(path)
    run.reach(30)
    run.keeper.flush()
    assert run.link.steps(Checkpointed) == [10, 30]


def test_an_error_that_nobody_foresaw_ends_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(CheckpointFolder(tmp_path, keep=10))

    def broken(self: CheckpointFolder, taken: Snapshot) -> str:
        raise MemoryError("no room")

    monkeypatch.setattr(CheckpointFolder, "write_part", broken)
    run.reach(10)
    run.keeper.flush()
    (failed,) = run.link.heard
    assert isinstance(failed, CheckpointFailed) and failed.message == "MemoryError: no room"
    monkeypatch.undo()
    run.reach(20)
    run.keeper.flush()
    assert run.link.steps(Checkpointed) == [20]


def test_the_newest_whole_one_is_loaded_and_not_written_again(tmp_path: Path) -> None:
    run = Run(CheckpointFolder(tmp_path, keep=10))
    run.reach(10)
    run.keeper.flush()
    again = Run(CheckpointFolder(tmp_path, keep=10))
    assert again.keeper.load(again.replica, again.group)
    assert again.replica.step == 10 and torch.equal(again.model.weight, torch.full((3, 3), 10.0))
    again.keeper.keep_if_due(again.replica, again.group)
    again.keeper.flush()
    assert not again.link.heard
    assert not Run(CheckpointFolder(tmp_path / "empty", keep=1)).keeper.load(again.replica, again.group)
