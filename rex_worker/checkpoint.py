"""Checkpoints that are whole or not there.

A worker can be killed, or the disk be full, at any moment of a save. So a checkpoint is written to a folder of its
own aside, synced, and renamed into place; its manifest lists each file's SHA-256. What does not match is not loaded:
the one before is taken, with a warning. Old ones are removed only after a newer one is in place, and only folders
that this module itself could have made. Nothing here is ever unpickled.

torch.distributed.checkpoint plans who writes which box of which tensor, and who reads it, so that a state that was
sharded over some ranks can be read by any other number of them. ``rex_worker.storage`` is where it lies.

Layout: ``DIR/step-000000001200/{manifest.json, state.json, part-00000.safetensors, ...}``; the job's last one ends in
``-final``.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import uuid
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor

from rex_worker.errors import ConfigurationError, first_line
from rex_worker.manifest import Place, Written, stored_tensor
from rex_worker.staging import Party, Snapshot, gather_texts, snapshot
from rex_worker.state import unpack
from rex_worker.storage import PartReader, PartWriter

__all__ = ["CheckpointDamaged", "CheckpointFolder", "Snapshot", "read_model_state", "snapshot"]

log = logging.getLogger("rex.checkpoint")

_NAME = re.compile(r"^step-\d{12}(-final)?$")
_ASIDE = ".writing-"

Like = Callable[[str, tuple[int, ...]], DTensor | None]
"""How a tensor of the state, known by its name and shape, is cut."""


class CheckpointDamaged(UserWarning):
    """A checkpoint could not be read and is passed over."""


class CheckpointFolder:
    """The checkpoints of one job. One process commits: the group's rank 0."""

    def __init__(self, path: Path, keep: int) -> None:
        self.path = path
        self._keep = keep
        self.passed_over: list[tuple[int, str]] = []
        """Steps of the damaged checkpoints that the last load has passed over, newest first, and what is wrong."""
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

    # --- writing ----------------------------------------------------------------------------------------------------

    def save(self, taken: Snapshot, final: bool = False) -> None:
        """Commit a checkpoint that this process holds alone, then drop the oldest ones.

        One of the same step that is already there and whole is left as it is.

        Raises:
            OSError: The disk is full or gone; the other checkpoints stay whole.
        """
        if not _is_whole(self._target(taken, final)):  # else there is no need to write it
            self.commit(taken, [self.write_part(taken)], final)

    def write_part(self, taken: Snapshot) -> str:
        """Write this rank's part aside, and return what ``commit`` has to know of it. Raises ``OSError``."""
        aside = self._aside(taken)
        try:
            writer = PartWriter(aside, taken.rank, taken.step, taken.samples)
            writer.set_up_storage_writer(is_coordinator=taken.rank == 0)
            results = writer.write_data(taken.plan, taken.planner).wait()
        except BaseException:
            if taken.size == 1:
                self.discard(taken)
            raise
        files = {name: [file.sha256, file.size] for name, file in writer.written.items()}
        return json.dumps({"files": files, "boxes": [_encode_result(result) for result in results]})

    def commit(self, taken: Snapshot, parts: Sequence[str], final: bool = False) -> None:
        """On rank 0: put a checkpoint in place whose ``parts`` all ranks have written. Raises ``OSError``."""
        aside, target = self._aside(taken), self._target(taken, final)
        if _is_whole(target):
            self.discard(taken)
            return
        try:
            writer = PartWriter(aside, taken.rank, taken.step, taken.samples)
            told = [json.loads(part) for part in parts]
            for part in told:
                writer.written |= {name: Written(*fields) for name, fields in part["files"].items()}
            for name, file in writer.written.items():
                if (aside / name).stat().st_size != file.size:
                    raise OSError(f"{name} is not what its writer saw; is the volume the same on all workers?")
            writer.write_state(taken.text)
            writer.finish(taken.metadata, [[_decode_result(row) for row in part["boxes"]] for part in told])
            _sync(aside)
            if target.exists():
                _remove(target)
            aside.rename(target)
            _sync(self.path)
        except BaseException:
            self.discard(taken)
            raise
        self._retire(target.name)

    def discard(self, taken: Snapshot) -> None:
        """Remove what was written of ``taken`` and not committed."""
        shutil.rmtree(self._aside(taken), ignore_errors=True)

    def clear_unfinished(self) -> None:
        """Remove what a killed writer left; call before the first save of a process that is alone in writing."""
        for entry in self.path.glob(f"{_ASIDE}*"):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)

    # --- reading ----------------------------------------------------------------------------------------------------

    def load_newest(self) -> tuple[Any, int] | None:
        """Return (state, step) of the newest checkpoint that is whole; None when there is none.

        All of it, on the host, however many ranks have written it.
        """
        self.passed_over = []
        for path in reversed(self._committed()):
            try:
                return _read(path)
            except Exception as error:  # whatever a stranger's bytes provoke, the one before is tried
                self._pass_over(path.name, f"{type(error).__name__}: {str(error)[:200]}")
        return None

    def load_newest_sharded(self, like: Like, party: Party) -> tuple[Any, int] | None:
        """As ``load_newest``, by all ranks of ``party`` together, each reading its own shards only.

        Args:
            like: Takes a tensor's name, such as ``model.0.weight``, and its whole shape; returns a ``DTensor`` of that
                shape which is cut as this one is wanted, or None for a tensor that is wanted whole.
            party: All ranks; each calls this.

        Raises:
            GroupLost: A rank was lost.
        """
        self.passed_over = []
        names = [path.name for path in reversed(self._committed())]
        for name in json.loads(gather_texts(party, json.dumps(names))[0]):
            found, trouble = None, ""
            try:
                reader = PartReader(self._named(name))
                reader.verify(party.rank, party.size)
                found = _assemble(reader, like), reader.manifest.step
            except Exception as error:
                trouble = f"{type(error).__name__}: {str(error)[:200]}"
            troubles = [text for text in gather_texts(party, trouble) if text]
            if not troubles:
                return found
            self._pass_over(name, troubles[0])
        return None

    def _pass_over(self, name: str, trouble: str) -> None:
        self.passed_over.append((int(name.split("-")[1]), trouble))
        _warn(name, trouble)

    def _named(self, name: str) -> Path:
        if not _NAME.match(name):
            raise ValueError(f"{name[:100]!r} is no name of a checkpoint")
        return self.path / name

    def _committed(self) -> list[Path]:
        found = [p for p in self.path.iterdir() if _NAME.match(p.name) and p.is_dir() and not p.is_symlink()]
        return sorted(found, key=lambda p: p.name)

    def _target(self, taken: Snapshot, final: bool) -> Path:
        return self.path / f"step-{taken.step:012d}{'-final' if final else ''}"

    def _aside(self, taken: Snapshot) -> Path:
        return self.path / f"{_ASIDE}{taken.token}"

    def _retire(self, newest: str) -> None:
        """Remove what is older than ``newest``, but for as many as are kept with it.

        What has a later step is left alone: it is of a run that came further, and may be damaged, which must not cost
        the one just written its place.
        """
        older = [path for path in self._committed() if path.name < newest]
        for old in older[: max(0, len(older) - self._keep + 1)]:
            try:
                _remove(old)
            except OSError as error:
                log.warning("old checkpoint %s could not be removed: %s", old.name, error)


def read_model_state(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read the model's weights from one checkpoint, or from the newest whole one in a folder of them.

    Needs no job, no group and no GPU: ``model.load_state_dict(read_model_state("checkpoints/digits"))``.

    Args:
        path: A ``step-...`` folder, or the folder that holds them.

    Returns:
        The model's ``state_dict``, on the host, however many ranks have written it.

    Raises:
        ValueError: There is no whole checkpoint; the message says what is wrong with it.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder")
    if _NAME.match(folder.resolve().name):
        return dict(_read(folder)[0]["model"])
    names = sorted((p for p in folder.iterdir() if _NAME.match(p.name)), key=lambda p: p.name, reverse=True)
    for one in names:
        try:
            return dict(_read(one)[0]["model"])
        except (OSError, ValueError) as error:
            _warn(one.name, first_line(error))
    raise ValueError(f"{folder} holds no whole checkpoint")


def _read(path: Path) -> tuple[Any, int]:
    reader = PartReader(path)
    reader.verify()
    return _assemble(reader, lambda name, shape: None), reader.manifest.step


def _assemble(reader: PartReader, like: Like) -> Any:
    """Put the state together: each tensor whole, or the shard that ``like`` asks for."""
    metadata = reader.read_metadata()
    tensors: dict[str, Tensor] = {}
    for name in metadata.state_dict_metadata:
        stored = stored_tensor(metadata, name)
        dtype, cut = stored.properties.dtype, like(name, tuple(stored.size))
        tensors[name] = (
            torch.empty(stored.size, dtype=dtype, device="cpu") if cut is None else torch.empty_like(cut, dtype=dtype)
        )
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(tensors, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    (plan,) = reader.prepare_global_plan(planner.create_global_plan([plan]))
    reader.read_data(planner.finish_plan(plan), planner).wait()
    return unpack(reader.state_text(), tensors)


def _is_whole(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        PartReader(path).verify()
    except (OSError, ValueError):  # damaged in whatever way
        return False
    return True


def _encode_result(result: WriteResult) -> list[Any]:
    place: Place = result.storage_data
    return [result.index.fqn, list(result.index.offset or ()), result.size_in_bytes, place.file, place.begin]


def _decode_result(row: Sequence[Any]) -> WriteResult:
    name, offsets, size, file, begin = row
    return WriteResult(MetadataIndex(name, torch.Size(offsets)), size, Place(file, begin))


def _warn(name: str, trouble: str) -> None:
    warnings.warn(
        f"checkpoint {name} cannot be used ({trouble}); trying the one before", CheckpointDamaged, stacklevel=4
    )


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
