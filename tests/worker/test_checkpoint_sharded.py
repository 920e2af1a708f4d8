"""A sharded state is written by all ranks of a group and read by any other number of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from rex_worker.checkpoint import CheckpointFolder, read_model_state
from tests.worker.operator_double import Nursery, Operator

pytestmark = pytest.mark.component

SCRIPT = Path(__file__).with_name("shards_script.py")


class Ranks:
    """Runs groups of the script."""

    def __init__(self, path: Path, nursery: Nursery) -> None:
        self.kept = path / "kept"
        self._path = path
        self._nursery = nursery
        self._waiting = Operator(path, nursery)
        self._runs = 0

    async def run(self, act: str, size: int, **variables: object) -> list[Any]:
        """Let ``size`` ranks act; returns what each made of it."""
        self._runs += 1
        here = self._path / f"run-{self._runs}"
        here.mkdir()
        common = {"ACT": act, "SIZE": str(size), "FOLDER": str(self.kept), "STORE": str(here / "store")}
        for rank in range(size):
            own = {"RANK": str(rank), "OUT": str(here / f"out-{rank}"), **{k: str(v) for k, v in variables.items()}}
            environment = {**os.environ, **common, **own}
            self._nursery.start(SCRIPT, environment, here / f"log-{rank}", here / f"exit-{rank}")
        exits = [here / f"exit-{rank}" for rank in range(size)]
        await self._waiting.until_true("the ends", lambda: all(path.exists() for path in exits))
        logs = "\n".join((here / f"log-{rank}").read_text() for rank in range(size))
        assert [path.read_text() for path in exits] == ["0"] * size, logs
        return [json.loads((here / f"out-{rank}").read_text()) for rank in range(size)]


@pytest.fixture
def ranks(tmp_path: Path, nursery: Nursery) -> Ranks:
    return Ranks(tmp_path, nursery)


async def test_c_120_shards_of_four_are_read_by_three_two_and_one(ranks: Ranks) -> None:
    wrote = await ranks.run("save", 4, STEP=12)
    replicated = [name for names in wrote for name in names if name == "model.copied"]
    assert len(replicated) == 1, "what all ranks have alike is written once"
    assert {path.name for path in (ranks.kept / "step-000000000012").glob("part-*")} == {
        f"part-{rank:05d}.safetensors" for rank in range(4)
    }
    for size in (3, 2, 1):
        assert await ranks.run("load", size) == [{"step": 12, "warnings": []}] * size
    whole, step = CheckpointFolder(ranks.kept, keep=3).load_newest() or ({}, 0)
    assert step == 12 and torch.equal(whole["model"]["rows"], read_model_state(ranks.kept)["rows"])
    assert whole["model"]["rows"].shape == (7, 5) and whole["model"]["columns"].dtype == torch.bfloat16


async def test_c_113_a_rank_that_cannot_write_leaves_the_one_before(ranks: Ranks) -> None:
    await ranks.run("save", 2, STEP=10)
    await ranks.run("save", 2, STEP=20, BREAK=1)
    assert [path.name for path in ranks.kept.iterdir()] == ["step-000000000010"]
    assert await ranks.run("load", 2) == [{"step": 10, "warnings": []}] * 2


async def test_c_113_a_damaged_part_makes_all_ranks_take_the_one_before(ranks: Ranks) -> None:
    await ranks.run("save", 2, STEP=10)
    await ranks.run("save", 2, STEP=20)
    part = ranks.kept / "step-000000000020" / "part-00001.safetensors"
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    for result in await ranks.run("load", 3):
        assert result["step"] == 10
        (warning,) = result["warnings"]
        assert "step-000000000020 cannot be used" in warning and "part-00001.safetensors is not what was" in warning
