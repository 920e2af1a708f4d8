"""How a checkpoint's tensors lie on the disk: DCP's storage interfaces over files that need no pickle.

Each rank writes one file in the safetensors format: a JSON header, then the numbers as they are in memory. The format
is public, parts of it can be read alone, and reading it runs nothing. Every byte is hashed on its way out.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from rex_worker.manifest import STATE_FILE, Manifest, Place, Written, part_name, stored_tensor, tensor_data

MANIFEST_FILE = "manifest.json"
_SLICE = 8 * 2**20
_MAX_TEXT_BYTES = 2**30
_LETTERS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2", torch.complex64: "C64",
}  # fmt: skip
"""The format's names of types. Others are kept as bytes; their true type is in the manifest."""

if sys.byteorder != "little":
    raise ImportError("checkpoints are little-endian, and this machine is not")


class PartWriter(StorageWriter):
    """Writes one rank's part of a checkpoint into ``folder``; rank 0 then adds the manifest in ``finish``."""

    def __init__(self, folder: Path, rank: int, step: int, samples: int) -> None:
        self._folder = folder
        self._rank = rank
        self._step = step
        self._samples = samples
        self.written: dict[str, Written] = {}
        """The files of all ranks; the caller adds those of the others before ``finish``."""

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A writer writes once."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Make the folder."""
        self._folder.mkdir(exist_ok=True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Nothing to add."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Nothing to add."""
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's tensors to its file."""
        name = part_name(self._rank)
        header, begins = _header(plan.items)
        with _Output(self._folder / name) as out:
            out.write(header)
            for item in plan.items:
                tensor = planner.resolve_data(item)
                if not isinstance(tensor, Tensor):
                    raise TypeError(f"{item.index.fqn} is not a tensor")
                out.write(_bytes_of(tensor))
        self.written[name] = out.written()
        results = [
            WriteResult(item.index, _bytes(item), Place(name, begin))
            for item, begin in zip(plan.items, begins, strict=True)
        ]
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def write_state(self, text: str) -> None:
        """Write what is not a tensor."""
        with _Output(self._folder / STATE_FILE) as out:
            out.write(text.encode())
        self.written[STATE_FILE] = out.written()

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the manifest over the parts of all ranks."""
        places = {result.index: result.storage_data for part in results for result in part}
        whole = Metadata(metadata.state_dict_metadata, storage_data=places)
        with _Output(self._folder / MANIFEST_FILE) as out:
            out.write(Manifest(self._step, self._samples, self.written, whole).encode().encode())

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Never found by a name: REX hands its writer over."""
        return False


class PartReader(StorageReader):
    """Reads what ``PartWriter`` wrote. ``verify`` first: reading itself checks nothing."""

    def __init__(self, folder: Path) -> None:
        """Read the manifest of ``folder``. Raises ``ValueError`` or ``OSError`` when it cannot be right."""
        self._folder = folder
        self.manifest = Manifest.decode(_text(folder / MANIFEST_FILE))

    def verify(self, share: int = 0, of: int = 1) -> None:
        """Compare the files with their digests: those of the ``share``-th of ``of`` shares. Raises ``ValueError``."""
        for name in sorted(self.manifest.files)[share::of]:
            expected = self.manifest.files[name]
            path = _no_link(self._folder / name)
            if path.stat().st_size != expected.size or _digest(path) != expected.sha256:
                raise ValueError(f"{name} is not what was written")

    def state_text(self) -> str:
        """What is not a tensor."""
        return _text(self._folder / STATE_FILE)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A reader reads one checkpoint."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What the manifest says."""
        return self.manifest.metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to prepare."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Read each file from its start to its end."""
        return LoadPlan(sorted(plan.items, key=self._order), plan.storage_data, plan.planner_data)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Nothing to add."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy the wanted boxes into the planner's tensors."""
        for item in plan.items:
            if item.type != LoadItemType.TENSOR:
                raise ValueError(f"{item.storage_index.fqn} is not a tensor")
            target = planner.resolve_tensor(item).detach()
            target.copy_(self._read(item))
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Never found by a name."""
        return False

    def _order(self, item: ReadItem) -> tuple[str, int]:
        place: Place = self.manifest.metadata.storage_data[item.storage_index]
        return place.file, place.begin

    def _read(self, item: ReadItem) -> Tensor:
        """Read one box of a box: only its rows leave the disk."""
        index = item.storage_index
        place: Place = self.manifest.metadata.storage_data[index]
        whole = stored_tensor(self.manifest.metadata, index.fqn)
        (stored,) = [chunk.sizes for chunk in whole.chunks if chunk.offsets == index.offset]
        dtype = whole.properties.dtype
        first, rows = (item.storage_offsets[0], item.lengths[0]) if len(stored) else (0, 1)
        row_shape = stored[1:]
        read = torch.empty([rows, *row_shape], dtype=dtype, device="cpu")
        begin = place.begin + first * prod(row_shape) * dtype.itemsize
        with _no_link(self._folder / place.file).open("rb") as file:
            file.seek(begin)
            buffer = _bytes_of(read)
            if file.readinto(buffer) != len(buffer):
                raise ValueError(f"{place.file} is too short")
        for dim in range(1, len(stored)):
            read = read.narrow(dim, item.storage_offsets[dim], item.lengths[dim])
        return read if len(stored) else read[0]


class _Output:
    """A new file that is hashed while it is written, and on the disk when the block ends."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._hash = hashlib.sha256()
        self._size = 0

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        for begin in range(0, len(view), _SLICE):
            piece = view[begin : begin + _SLICE]
            self._file.write(piece)
            self._hash.update(piece)
        self._size += len(view)

    def written(self) -> Written:
        return Written(self._hash.hexdigest(), self._size)


def _header(items: Sequence[WriteItem]) -> tuple[bytes, list[int]]:
    """The format's header, and where in the file each tensor begins."""
    entries: dict[str, Any] = {}
    ends = [0]
    for item in items:
        data = tensor_data(item)
        sizes, letters = list(data.chunk.sizes), _LETTERS.get(data.properties.dtype)
        begin, end = ends[-1], ends[-1] + _bytes(item)
        whole = data.chunk.sizes == data.size
        name = item.index.fqn if whole else f"{item.index.fqn}@{','.join(map(str, data.chunk.offsets))}"
        shape = sizes if letters else [end - begin]
        entries[name] = {"dtype": letters or "U8", "shape": shape, "data_offsets": [begin, end]}
        ends.append(end)
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, [len(header) + begin for begin in ends[:-1]]


def _bytes(item: WriteItem) -> int:
    data = tensor_data(item)
    return prod(data.chunk.sizes) * data.properties.dtype.itemsize


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _no_link(path: Path) -> Path:
    if path.is_symlink():
        raise ValueError(f"{path.name} is a link")
    return path


def _text(path: Path) -> str:
    with _no_link(path).open("rb") as file:
        text = file.read(_MAX_TEXT_BYTES + 1)
    if len(text) > _MAX_TEXT_BYTES:
        raise ValueError(f"{path.name} is too long")
    return text.decode()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
