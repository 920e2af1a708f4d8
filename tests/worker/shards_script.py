"""One rank of a group that saves a sharded state (ACT=save) or reads one and compares it (ACT=load).

RANK, SIZE: place in the group. FOLDER: the checkpoints. STORE: a file to meet at. STEP: to save as. BREAK: a rank whose
disk fails. OUT: where to write what came of it, as JSON.
"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import FileStore
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from rex_worker.checkpoint import CheckpointFolder
from rex_worker.group import Group
from rex_worker.staging import Stager, gather_texts
from rex_worker.store import PatientStore

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["SIZE"])


def expected(step: int) -> dict[str, Tensor]:
    """The whole tensors: odd sizes, none that a group of four divides evenly."""
    generator = torch.Generator().manual_seed(step)
    return {
        "rows": torch.randn(7, 5, generator=generator),
        "columns": torch.randn(3, 6, generator=generator).bfloat16(),
        "few": torch.randn(2, generator=generator),
        "copied": torch.randn(4, 4, generator=generator),
        "plain": torch.randn(11, generator=generator),
        "scalar": torch.tensor(float(step)),
        "complex": torch.randn(5, generator=generator, dtype=torch.complex128),
    }


PLACEMENTS = {"rows": Shard(0), "columns": Shard(1), "few": Shard(0), "copied": Replicate(), "complex": Shard(0)}


def sharded(tensors: dict[str, Tensor], group: Group) -> dict[str, Tensor]:
    mesh = group.mesh()
    return {
        name: distribute_tensor(tensor, mesh, [PLACEMENTS[name]]) if name in PLACEMENTS else tensor
        for name, tensor in tensors.items()
    }


def save(folder: CheckpointFolder, group: Group, step: int) -> list[str]:
    model = sharded(expected(step), group)
    state = {"model": model, "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}}, "step": step}
    taken = Stager().take(state, step, step * 10, group)
    for tensor in model.values():  # training goes on
        (tensor.to_local() if isinstance(tensor, DTensor) else tensor).zero_()
    try:
        if os.environ.get("BREAK") == str(RANK):
            raise OSError(28, "No space left on device")
        told = folder.write_part(taken)
    except OSError:
        told = ""
    parts = gather_texts(group, told)
    if RANK == 0:
        if all(parts):
            folder.commit(taken, parts)
        else:
            folder.discard(taken)
    return list(taken.tensors)


def load(folder: CheckpointFolder, group: Group) -> Any:
    cut = {
        f"model.{name}": tensor for name, tensor in sharded(expected(0), group).items() if isinstance(tensor, DTensor)
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = folder.load_newest_sharded(lambda name, shape: cut.get(name), group)
    if found is None:
        return None
    state, step = found
    right = sharded(expected(step), group)
    for name, tensor in state["model"].items():
        wanted = right[name]
        assert isinstance(tensor, DTensor) == (name in PLACEMENTS), name
        if isinstance(tensor, DTensor) and isinstance(wanted, DTensor):
            assert torch.equal(tensor.to_local(), wanted.to_local()), name
        else:
            assert torch.equal(tensor, wanted), name
    assert state["step"] == step and float(state["optimizer"]["state"][0]["step"]) == 3.0
    return {"step": step, "warnings": [str(warning.message) for warning in caught]}


def main() -> None:
    store = PatientStore(FileStore(os.environ["STORE"], SIZE), lambda: False)
    group = Group(1, RANK, SIZE, torch.device("cpu"), store, 30.0, lambda: False)
    folder = CheckpointFolder(Path(os.environ["FOLDER"]), keep=3)
    result = save(folder, group, int(os.environ["STEP"])) if os.environ["ACT"] == "save" else load(folder, group)
    group.gate("done")
    Path(os.environ["OUT"]).write_text(json.dumps(result))
    group.close()
    os._exit(0)  # taking down all of torch's modules would last longer than the test


if __name__ == "__main__":
    main()
