"""Checkpoints that are whole or not there.

A worker can be killed, or the disk be full, at any moment of a save. So a checkpoint is written to a folder of its
own aside, synced, and renamed into place; its manifest lists each file's SHA-256. What does not match is not loaded:
the one before is taken, with a warning. Old ones are removed only after a newer one is in place, and only folders
that this module itself could have made. Nothing here is ever unpickled beyond what ``torch.load(weights_only=True)``
allows.

Layout: ``DIR/step-000000001200/{manifest.json, state.json, tensors.pt}``; the job's last one ends in ``-final``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import uuid
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rex_worker.errors import ConfigurationError
from rex_worker.state import pack, unpack

log = logging.getLogger("rex.checkpoint")

FORMAT = 1
_NAME = re.compile(r"^step-\d{12}(-final)?$")
_ASIDE = ".writing-"
_FILES = ("state.json", "tensors.pt")


class CheckpointDamaged(UserWarning):
    """A checkpoint could not be read and is passed over."""


@dataclass(frozen=True)
class Snapshot:
    """A state copied off the devices, safe from further training."""

    step: int
    samples: int
    text: str
    tensors: list[Tensor]


def snapshot(state: Any, step: int, samples: int) -> Snapshot:
    """Copy ``state`` to host memory. Raises ``UsageError`` when it holds what cannot be kept."""
    text, tensors = pack(state)
    return Snapshot(step, samples, text, [tensor.to("cpu", copy=True) for tensor in tensors])


class CheckpointFolder:
    """The checkpoints of one job. One process writes at a time: the group's rank 0."""

    def __init__(self, path: Path, keep: int) -> None:
        self.path = path
        self._keep = keep
        try:
            path.mkdir(parents=True, exist_ok=True)
            probe = path / f"{_ASIDE}probe-{uuid.uuid4().hex}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ConfigurationError(
                f"the checkpoint folder {path} is not writable ({error.strerror or error}); give the job a folder or a"
                " volume that its user may write to, or leave spec.checkpoint out"
            ) from None

    def save(self, taken: Snapshot, final: bool = False) -> None:
        """Commit a checkpoint, then drop the oldest ones. Raises ``OSError`` (disk full); the others stay whole.

        One of the same step that is already there and whole is left as it is.
        """
        target = self.path / f"step-{taken.step:012d}{'-final' if final else ''}"
        if _is_whole(target):
            return
        aside = self.path / f"{_ASIDE}{uuid.uuid4().hex}"
        try:
            aside.mkdir()
            (aside / "state.json").write_text(taken.text)
            torch.save({str(i): tensor for i, tensor in enumerate(taken.tensors)}, aside / "tensors.pt")
            manifest = {
                "format": FORMAT,
                "step": taken.step,
                "samples": taken.samples,
                "files": {name: _digest(aside / name) for name in _FILES},
            }
            (aside / "manifest.json").write_text(json.dumps(manifest, indent=1))
            for name in (*_FILES, "manifest.json"):
                _sync(aside / name)
            _sync(aside)
            if target.exists():
                _remove(target)
            aside.rename(target)
            _sync(self.path)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        self._retire()

    def load_newest(self) -> tuple[Any, int] | None:
        """Return (state, step) of the newest checkpoint that is whole; None when there is none."""
        for path in reversed(self._committed()):
            try:
                return _read(path)
            except Exception as error:  # whatever a stranger's bytes provoke, the one before is tried
                warnings.warn(
                    f"checkpoint {path.name} cannot be used ({type(error).__name__}: {str(error)[:200]}); trying the"
                    " one before",
                    CheckpointDamaged,
                    stacklevel=2,
                )
        return None

    def clear_unfinished(self) -> None:
        """Remove what a killed writer left; call before the first save of a process that is alone in writing."""
        for entry in self.path.glob(f"{_ASIDE}*"):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)

    def _committed(self) -> list[Path]:
        found = [p for p in self.path.iterdir() if _NAME.match(p.name) and p.is_dir() and not p.is_symlink()]
        return sorted(found, key=lambda p: p.name)

    def _retire(self) -> None:
        for old in self._committed()[: -self._keep]:
            try:
                _remove(old)
            except OSError as error:
                log.warning("old checkpoint %s could not be removed: %s", old.name, error)


def _read(path: Path) -> tuple[Any, int]:
    manifest = json.loads((path / "manifest.json").read_text())
    if manifest.get("format") != FORMAT:
        raise ValueError(f"format {manifest.get('format')!r}; this build reads {FORMAT}")
    for name in _FILES:
        if manifest["files"][name] != _digest(path / name):
            raise ValueError(f"{name} is not what was written")
    tensors = torch.load(path / "tensors.pt", map_location="cpu", weights_only=True)
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise ValueError("tensors.pt holds other things than tensors")
    state = unpack((path / "state.json").read_text(), [tensors[str(i)] for i in range(len(tensors))])
    return state, int(manifest["step"])


def _is_whole(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        _read(path)
    except Exception:  # damaged in whatever way
        return False
    return True


def _digest(path: Path) -> str:
    if path.is_symlink():
        raise ValueError(f"{path.name} is a link")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """Take a checkpoint out of sight in one act, then delete it: a kill in between leaves no half of one."""
    aside = path.with_name(f"{_ASIDE}old-{uuid.uuid4().hex}")
    path.rename(aside)
    shutil.rmtree(aside)
