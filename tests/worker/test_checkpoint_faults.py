"""Whatever call to the disk fails, and wherever a writer is killed: a committed checkpoint can be loaded."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from rex_worker.checkpoint import CheckpointFolder, snapshot


class Killed(BaseException):
    """The process is dead: nothing that it would still do happens."""


class Disk:
    """Counts the calls that change something on the disk, and lets the ``at``-th one go wrong."""

    def __init__(self, at: int, how: str) -> None:
        self.at = at
        self.how = how
        self.calls = 0
        self.names: list[str] = []

    def call(self, name: str, act: Callable[[], Any], torn: Callable[[], Any] | None = None) -> Any:
        self.calls += 1
        self.names.append(name)
        if self.calls < self.at or (self.how == "once" and self.calls > self.at):
            return act()
        if self.calls == self.at and torn is not None:
            torn()
        if self.how == "killed":
            raise Killed
        raise OSError(5, "Input/output error")


class TornFile:
    """A file of which half of a failing write arrives."""

    def __init__(self, file: io.BufferedWriter, disk: Disk) -> None:
        self._file = file
        self._disk = disk

    def write(self, data: memoryview) -> None:
        self._disk.call("write", lambda: self._file.write(data), lambda: self._file.write(data[: len(data) // 2]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> TornFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@contextmanager
def failing(disk: Disk) -> Iterator[None]:
    """While the block runs, calls to the disk go through ``disk``."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "rename", "mkdir", "unlink", "rmdir"):
            real = getattr(os, name)
            patch.setattr(os, name, lambda *a, _name=name, _real=real, **k: disk.call(_name, lambda: _real(*a, **k)))
        real_open = Path.open

        def opened(path: Path, mode: str = "r", *a: Any, **k: Any) -> Any:
            if "x" not in mode:
                return real_open(path, mode, *a, **k)
            return TornFile(disk.call("open", lambda: real_open(path, mode, *a, **k)), disk)

        patch.setattr(Path, "open", opened)
        yield


def state(step: int) -> dict[str, Any]:
    return {"weights": torch.full((50,), float(step)), "nested": {"moment": torch.full((3, 2), step / 7)}, "lr": 0.1}


def is_state_of(loaded: Any, step: int) -> bool:
    expected = state(step)
    return bool(
        torch.equal(loaded["weights"], expected["weights"])
        and torch.equal(loaded["nested"]["moment"], expected["nested"]["moment"])
        and loaded["lr"] == expected["lr"]
    )


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("how", ["once", "from then on", "killed"])
def test_c_113_c_117_any_call_may_fail(tmp_path: Path, how: str, keep: int) -> None:
    """Each call in turn, of a save onto a folder that holds one: what is loaded is whole, and the old or the new."""
    seen: set[str] = set()
    for at in range(1, 1000):
        path = tmp_path / f"{at}"
        CheckpointFolder(path, keep).save(snapshot(state(10), 10, 100))
        disk, ended = Disk(at, how), "well"
        folder = CheckpointFolder(path, keep)
        with failing(disk):
            try:
                folder.save(snapshot(state(20), 20, 200))
            except OSError:
                ended = "error"
            except Killed:
                ended = "killed"
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # not even a damaged one may be left under a checkpoint's name
            loaded, step = folder.load_newest() or (None, 0)
        assert is_state_of(loaded, step) and step in ((20,) if ended == "well" else (10, 20)), (at, disk.names)
        folder.clear_unfinished()
        folder.save(snapshot(state(30), 30, 300))
        assert folder.load_newest() is not None and (folder.load_newest() or (None, 0))[1] == 30
        assert not list(path.glob(".writing-*")), "nothing is left behind"
        seen |= set(disk.names)
        if disk.calls < at:
            break
    assert seen >= {"open", "write", "fsync", "mkdir", "rename", "unlink"}
    assert at > 15


@pytest.mark.parametrize("how", ["once", "from then on", "killed"])
def test_c_113_any_call_may_fail_while_a_damaged_one_is_replaced(tmp_path: Path, how: str) -> None:
    for at in range(1, 1000):
        path = tmp_path / f"{at}"
        folder = CheckpointFolder(path, keep=5)
        folder.save(snapshot(state(10), 10, 100))
        folder.save(snapshot(state(20), 20, 200))
        (path / "step-000000000020" / "state.json").write_text("{}")
        disk = Disk(at, how)
        with failing(disk), suppress(OSError, Killed):
            folder.save(snapshot(state(20), 20, 200))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded, step = folder.load_newest() or (None, 0)
        assert is_state_of(loaded, step)
        if disk.calls < at:
            break
    assert step == 20
