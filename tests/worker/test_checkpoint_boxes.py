"""However a tensor was cut by those who wrote it, any box of it can be read: that is what resharding is made of."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from rex_worker.manifest import decode_plan, encode_plan, stored_tensor
from rex_worker.staging import Planner
from rex_worker.storage import PartReader, PartWriter

Box = tuple[list[int], list[int]]
"""Offsets and sizes."""


@st.composite
def cuts(draw: st.DrawFn, shape: list[int]) -> list[Box]:
    """Cut a tensor in boxes by cutting one of them in two, again and again; empty ones may be among them."""
    boxes: list[Box] = [([0] * len(shape), list(shape))]
    for _ in range(draw(st.integers(0, 5)) if shape else 0):
        offsets, sizes = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        dim = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(0, sizes[dim]))
        right = [o + at * (i == dim) for i, o in enumerate(offsets)]
        boxes += [
            (offsets, [at if i == dim else n for i, n in enumerate(sizes)]),
            (right, [n - at if i == dim else n for i, n in enumerate(sizes)]),
        ]
    return boxes


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Tensor, list[Box], list[Box], int]:
    shape = draw(st.lists(st.integers(1, 5), max_size=3))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int8]))
    tensor = torch.arange(torch.Size(shape).numel()).to(dtype).reshape(shape)
    return tensor, draw(cuts(shape)), draw(cuts(shape)), draw(st.integers(1, 3))


def part_of(tensor: Tensor, box: Box) -> Tensor:
    for dim, (offset, size) in enumerate(zip(*box, strict=True)):
        tensor = tensor.narrow(dim, offset, size)
    return tensor


def chunk(box: Box) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(box[0]), torch.Size(box[1]))


def item(name: str, tensor: Tensor, box: Box) -> WriteItem:
    data = TensorWriteData(chunk(box), TensorProperties(dtype=tensor.dtype), tensor.size())
    return WriteItem(MetadataIndex(name, torch.Size(box[0])), WriteItemType.SHARD, tensor_data=data)


class Boxes(Planner):
    """Has several boxes of one tensor, where a real rank has one."""

    def __init__(self, boxes: dict[MetadataIndex, Tensor]) -> None:
        super().__init__()
        self._boxes = boxes

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return self._boxes[index]


class Wanted(DefaultLoadPlanner):
    """Wants one box of one tensor."""

    def __init__(self, target: Tensor) -> None:
        super().__init__()
        self._target = target

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self._target


@settings(max_examples=200, deadline=None)
@given(scenes())
def test_any_cut_is_read_by_any_other(scene: tuple[Tensor, list[Box], list[Box], int]) -> None:
    tensor, written, wanted, ranks = scene
    # Two boxes may begin at one place if one of them is empty; DCP knows a box by where it begins, and keeps one.
    by_place = {tuple(box[0]): box for box in sorted(written, key=lambda box: torch.Size(box[1]).numel())}
    boxes = list(by_place.values())
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        plans = [SavePlan([item("w", tensor, box) for box in boxes[rank::ranks]]) for rank in range(ranks)]
        plans = [decode_plan(encode_plan(plan)) for plan in plans]
        plans, metadata = Planner().create_global_plan(plans)
        writers = [PartWriter(folder, rank, 1, 10) for rank in range(ranks)]
        results = []
        for writer, plan in zip(writers, plans, strict=True):
            copies = {
                one.index: part_of(tensor, (list(one.tensor_data.chunk.offsets), list(one.tensor_data.chunk.sizes)))
                for one in plan.items
                if one.tensor_data is not None
            }
            packed = {index: copy.contiguous() for index, copy in copies.items()}
            results.append(writer.write_data(plan, Boxes(packed)).wait())
        for writer in writers[1:]:
            writers[0].written |= writer.written
        writers[0].write_state("{}")
        writers[0].finish(metadata, results)

        reader = PartReader(folder)
        reader.verify()
        for box in wanted:
            items = create_read_items_for_chunk_list("w", stored_tensor(reader.read_metadata(), "w"), [chunk(box)])
            target = torch.zeros(box[1], dtype=tensor.dtype)
            reader.read_data(reader.prepare_local_plan(LoadPlan(items)), Wanted(target)).wait()
            assert torch.equal(target, part_of(tensor, box))
