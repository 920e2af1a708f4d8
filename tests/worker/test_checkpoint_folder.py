from __future__ import annotations

import dataclasses
import hashlib
import os
import pickle
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from rex_worker.checkpoint import CheckpointDamaged, CheckpointFolder, snapshot
from rex_worker.errors import ConfigurationError
from rex_worker.manifest import Manifest, Written
from tests.worker.operator_double import Nursery, Operator


def state(step: int) -> dict[str, Any]:
    return {"weights": torch.full((50,), float(step)), "step": step, "lr": 0.1, "betas": (0.9, 0.99)}


def save(folder: CheckpointFolder, step: int) -> None:
    folder.save(snapshot(state(step), step, step * 10))


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def test_the_newest_comes_back(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "kept", keep=2)
    assert folder.load_newest() is None
    for step in (10, 20, 30):
        save(folder, step)
    loaded, step = folder.load_newest() or ({}, -1)
    assert step == 30 and torch.equal(loaded["weights"], torch.full((50,), 30.0)) and loaded["betas"] == (0.9, 0.99)
    assert names(tmp_path / "kept") == ["step-000000000020", "step-000000000030"]


@pytest.mark.parametrize("keep", [1, 2, 3, 5, 8])
def test_as_many_are_kept_as_was_asked(tmp_path: Path, keep: int) -> None:
    folder = CheckpointFolder(tmp_path, keep)
    for step in range(1, 8):
        save(folder, step)
        assert names(tmp_path) == [f"step-{kept:012d}" for kept in range(1, step + 1)][-keep:]


def test_c_117_one_of_a_later_step_that_is_damaged_costs_no_newer_one_its_place(tmp_path: Path) -> None:
    """As after a fall back: what is written from there on has lower steps than what was found damaged."""
    folder = CheckpointFolder(tmp_path, keep=1)
    save(folder, 50)
    (tmp_path / "step-000000000050" / "state.json").write_text("")
    for step in (10, 20):
        save(folder, step)
        assert names(tmp_path) == [f"step-{step:012d}", "step-000000000050"]
    with pytest.warns(CheckpointDamaged):
        assert (folder.load_newest() or ({}, 0))[1] == 20
    save(folder, 50)
    assert names(tmp_path) == ["step-000000000050"]


def test_a_snapshot_is_safe_from_further_training() -> None:
    live = state(1)
    taken = snapshot(live, 1, 10)
    live["weights"].fill_(9.0)
    assert torch.equal(taken.tensors["weights"], torch.full((50,), 1.0))


@pytest.mark.parametrize("file", ["part-00000.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["empty", "half", "flipped byte", "gone"])
def test_c_113_a_damaged_one_is_passed_over_with_a_warning(tmp_path: Path, file: str, damage: str) -> None:
    folder = CheckpointFolder(tmp_path, keep=3)
    save(folder, 10)
    save(folder, 20)
    victim = tmp_path / "step-000000000020" / file
    content = victim.read_bytes()
    match damage:
        case "empty":
            victim.write_bytes(b"")
        case "half":
            victim.write_bytes(content[: len(content) // 2])
        case "flipped byte":
            middle = len(content) // 2
            victim.write_bytes(content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :])
        case "gone":
            victim.unlink()
    with pytest.warns(CheckpointDamaged, match="step-000000000020 cannot be used"):
        loaded = folder.load_newest()
    assert loaded is not None and loaded[1] == 10
    save(folder, 20)  # the run comes to step 20 again, and replaces it
    assert (folder.load_newest() or ({}, 0))[1] == 20


SAVER = """
import os
from pathlib import Path
import torch
from rex_worker.checkpoint import CheckpointFolder, snapshot
folder = CheckpointFolder(Path(os.environ["KEPT"]), keep=1)
for step in range(int(os.environ["FIRST"]), 10**6):
    folder.save(snapshot({"weights": torch.full((20000,), float(step))}, step, step))
    print(step, flush=True)
"""


@pytest.mark.component
async def test_c_113_c_117_a_writer_killed_at_any_moment_leaves_a_whole_one(tmp_path: Path, nursery: Nursery) -> None:
    """keep=1 and a kill during a save: each time the newest that was committed, or the one after, can be loaded."""
    kept, script, log = tmp_path / "kept", tmp_path / "saver.py", tmp_path / "log"
    script.write_text(SAVER)
    log.touch()
    rex = Operator(tmp_path, nursery)

    def committed() -> int:
        return max(map(int, log.read_text().split()), default=0)

    for attempt in range(12):
        first = committed() + 1
        environment = {**os.environ, "KEPT": str(kept), "FIRST": str(first)}
        pid = nursery.start(script, environment, log, tmp_path / f"exit-{attempt}")
        await rex.until_true("some saves", lambda wanted=first + attempt % 4: committed() >= wanted)  # type: ignore[misc]
        os.kill(pid, signal.SIGKILL)
        await rex.until_true("the end", (tmp_path / f"exit-{attempt}").exists)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loaded = CheckpointFolder(kept, keep=1).load_newest()
        assert loaded is not None
        assert loaded[1] in (committed(), committed() + 1)
        assert torch.equal(loaded[0]["weights"], torch.full((20000,), float(loaded[1])))
    folder = CheckpointFolder(kept, keep=1)
    folder.clear_unfinished()
    save(folder, 10**7)
    assert names(kept) == ["step-000010000000"]


def test_a_full_disk_fails_the_save_and_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CheckpointFolder(tmp_path, keep=1)
    save(folder, 10)

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rex_worker.checkpoint._sync", full)
    with pytest.raises(OSError, match="No space left"):
        save(folder, 20)
    assert names(tmp_path) == ["step-000000000010"]
    assert (folder.load_newest() or ({}, 0))[1] == 10


class Canary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("name", ["state.json", "part-00000.safetensors", "manifest.json", ".metadata"])
@pytest.mark.parametrize("attack", ["pickle", "torch"])
def test_c_212_what_lies_there_is_never_run(tmp_path: Path, name: str, attack: str) -> None:
    """Whoever may write to the volume can seal what he put there, too; still nothing is unpickled."""
    canary = tmp_path / "canary"
    folder = CheckpointFolder(tmp_path / "kept", keep=5)
    save(folder, 10)
    save(folder, 20)
    path = tmp_path / "kept" / "step-000000000020"
    if attack == "pickle":
        (path / name).write_bytes(pickle.dumps(Canary(canary)) + bytes(1000))
    else:
        with (path / name).open("wb") as file:
            torch.save({"0": Canary(canary), "1": torch.zeros(300)}, file)
    if name in ("state.json", "part-00000.safetensors"):
        manifest = Manifest.decode((path / "manifest.json").read_text())
        content = (path / name).read_bytes()
        written = Written(hashlib.sha256(content).hexdigest(), len(content))
        resealed = dataclasses.replace(manifest, files={**manifest.files, name: written})
        (path / "manifest.json").write_text(resealed.encode())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = folder.load_newest()
    wanted = 10 if name in ("state.json", "manifest.json") else 20
    assert loaded is not None and loaded[1] == wanted, "in a file of numbers, whatever is there is numbers"
    assert not canary.exists()


def test_c_211_retention_and_loading_follow_no_link_out_of_the_folder(tmp_path: Path) -> None:
    outside = tmp_path / "other-run"
    other = CheckpointFolder(outside, keep=5)
    save(other, 99)
    inside = tmp_path / "kept"
    folder = CheckpointFolder(inside, keep=1)
    (inside / "step-000000000001").symlink_to(outside / "step-000000000099", target_is_directory=True)
    (inside / "step-000000000050.bak").mkdir()
    (inside / "notes.txt").write_text("the user's")
    for step in (10, 20):
        save(folder, step)
    assert (outside / "step-000000000099" / "manifest.json").exists()
    assert {"step-000000000001", "step-000000000050.bak", "notes.txt", "step-000000000020"} == set(names(inside))
    assert (folder.load_newest() or ({}, 0))[1] == 20
    part = "part-00000.safetensors"
    (inside / "step-000000000020" / part).unlink()
    (inside / "step-000000000020" / part).symlink_to(outside / "step-000000000099" / part)
    with pytest.warns(CheckpointDamaged, match="is a link"):
        assert folder.load_newest() is None


def test_a_folder_that_is_not_writable_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"checkpoint folder .*file/kept is not writable \(Not a directory\)"):
        CheckpointFolder(tmp_path / "file" / "kept", keep=1)
