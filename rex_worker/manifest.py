"""What a checkpoint says of itself, in JSON.

torch.distributed.checkpoint (DCP) describes a checkpoint by a ``Metadata`` object: each tensor's type and shape, and
which boxes of it were written. Its own storage keeps that as a pickle, which runs whatever a stranger puts there. Here
it is JSON, together with the digest of each file and one of the manifest's own text, so that no bit of a checkpoint
can change unseen. Reading trusts nothing: every name, size and number is checked before it is used.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

FORMAT = 2
STATE_FILE = "state.json"
_PART = re.compile(r"^part-\d{5}\.safetensors$")
_SEAL = "seal"


def part_name(rank: int) -> str:
    """Name of the file that holds what rank ``rank`` wrote."""
    return f"part-{rank:05d}.safetensors"


@dataclass(frozen=True)
class Place:
    """Where a box of a tensor lies: contiguous, in row-major order, little-endian."""

    file: str
    begin: int
    """Offset in bytes from the start of the file."""


@dataclass(frozen=True)
class Written:
    """A file as it was written."""

    sha256: str
    size: int
    """Bytes."""


@dataclass(frozen=True)
class Manifest:
    """A checkpoint's description."""

    step: int
    samples: int
    files: Mapping[str, Written]
    metadata: Metadata
    """Of DCP; ``storage_data`` maps each box's index to its ``Place``."""

    def encode(self) -> str:
        """Write it down, sealed."""
        body = {
            "format": FORMAT,
            "step": self.step,
            "samples": self.samples,
            "files": {name: {"sha256": file.sha256, "bytes": file.size} for name, file in self.files.items()},
            "tensors": {
                name: _encode_tensor(name, stored_tensor(self.metadata, name), self.metadata.storage_data)
                for name in self.metadata.state_dict_metadata
            },
        }
        return _dump({**body, _SEAL: _digest(body)})

    @classmethod
    def decode(cls, text: str) -> Manifest:
        """Read it. Raises ``ValueError`` on anything that ``encode`` did not write."""
        try:
            body = json.loads(text)
            if not isinstance(body, dict) or _dump(body) != text or body.pop(_SEAL) != _digest(body):
                raise ValueError("the manifest is not what was written")
            if body["format"] != FORMAT:
                raise ValueError(f"format {body['format']!r}; this build reads {FORMAT}")
            files = {_checked(name): Written(str(f["sha256"]), _count(f["bytes"])) for name, f in body["files"].items()}
            if STATE_FILE not in files:
                raise ValueError(f"{STATE_FILE} is missing")
            tensors: dict[str, TensorStorageMetadata] = {}
            places: dict[MetadataIndex, Place] = {}
            for name, fields in body["tensors"].items():
                tensors[name] = _decode_tensor(name, fields, files, places)
            stored = sum(file.size for file in files.values())
            if sum(prod(t.size) * t.properties.dtype.itemsize for t in tensors.values()) > stored:
                raise ValueError("the tensors are larger than their files")
            metadata = Metadata(state_dict_metadata=dict(tensors), storage_data=places)
            return cls(_count(body["step"]), _count(body["samples"]), files, metadata)
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a manifest: {type(error).__name__}: {error}") from error


def stored_tensor(metadata: Metadata, name: str) -> TensorStorageMetadata:
    """What was written of a tensor. Everything that is not a tensor is in the state's JSON."""
    stored = metadata.state_dict_metadata[name]
    if not isinstance(stored, TensorStorageMetadata):
        raise TypeError(f"{name} is not a tensor")
    return stored


def tensor_data(item: WriteItem) -> TensorWriteData:
    """What is to be written of a tensor."""
    if item.tensor_data is None:
        raise TypeError(f"{item.index.fqn} is not a tensor")
    return item.tensor_data


def encode_plan(plan: SavePlan) -> list[Any]:
    """DCP's plan of one rank's tensors as plain data, for the other ranks."""
    rows = []
    for item in plan.items:
        data = tensor_data(item)
        numbers = [list(size) for size in (data.chunk.offsets, data.chunk.sizes, data.size)]
        rows.append([item.index.fqn, item.type.name, *numbers, str(data.properties.dtype)])
    return rows


def decode_plan(rows: Sequence[Any]) -> SavePlan:
    """Undo ``encode_plan``."""
    items = []
    for name, kind, offsets, sizes, shape, dtype in rows:
        box = ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes))
        data = TensorWriteData(chunk=box, properties=TensorProperties(dtype=_dtype(dtype)), size=torch.Size(shape))
        index = MetadataIndex(name, torch.Size(offsets))
        items.append(WriteItem(index=index, type=WriteItemType[kind], tensor_data=data))
    return SavePlan(items)


def _encode_tensor(name: str, tensor: TensorStorageMetadata, places: Mapping[MetadataIndex, Place]) -> dict[str, Any]:
    boxes = []
    for chunk in tensor.chunks:
        place = places[MetadataIndex(name, chunk.offsets)]
        boxes.append([list(chunk.offsets), list(chunk.sizes), place.file, place.begin])
    return {"dtype": str(tensor.properties.dtype), "shape": list(tensor.size), "boxes": boxes}


def _decode_tensor(
    name: str, fields: Any, files: Mapping[str, Written], places: dict[MetadataIndex, Place]
) -> TensorStorageMetadata:
    dtype, shape = _dtype(fields["dtype"]), _size(fields["shape"])
    chunks = []
    for offsets, sizes, file, begin in fields["boxes"]:
        chunk = ChunkStorageMetadata(offsets=_size(offsets), sizes=_size(sizes))
        rank_differs = not len(shape) == len(chunk.offsets) == len(chunk.sizes)
        if rank_differs or any(o + n > s for o, n, s in zip(chunk.offsets, chunk.sizes, shape, strict=True)):
            raise ValueError(f"{name}: a box lies outside of the tensor")
        if _count(begin) + prod(chunk.sizes) * dtype.itemsize > files[file].size:
            raise ValueError(f"{name}: a box lies outside of its file")
        places[MetadataIndex(name, chunk.offsets)] = Place(file, begin)
        chunks.append(chunk)
    if sum(prod(chunk.sizes) for chunk in chunks) != prod(shape):
        raise ValueError(f"{name}: the boxes do not fill the tensor")
    return TensorStorageMetadata(TensorProperties(dtype=dtype), shape, chunks)


def _dump(body: dict[str, Any]) -> str:
    return json.dumps(body, indent=1)


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(_dump(body).encode()).hexdigest()


def _checked(name: str) -> str:
    if name != STATE_FILE and not _PART.match(name):
        raise ValueError(f"{name[:100]!r} is no file of a checkpoint")
    return name


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _size(values: Any) -> torch.Size:
    return torch.Size([_count(value) for value in values])


def _dtype(name: Any) -> torch.dtype:
    found = getattr(torch, str(name).removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{str(name)[:100]!r} is no type of numbers")
    return found
