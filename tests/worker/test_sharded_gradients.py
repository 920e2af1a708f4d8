"""Promise 1 for sharded models: for any shares, passes and ways to shard, the gradient is that of one process."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cluster.ports import quiet_port
from tests.worker.operator_double import ROOT, Nursery

pytestmark = pytest.mark.component

SCRIPT = Path(__file__).with_name("sharded_gradients_script.py")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_gradient_of_a_sharded_model_is_that_of_one_process(tmp_path: Path, nursery: Nursery, size: int) -> None:
    port = quiet_port()
    logs, exits = [], []
    for rank in range(size):
        log, exit_file = tmp_path / f"{rank}.log", tmp_path / f"{rank}.exit"
        environment = {
            "PYTHONPATH": str(ROOT), "RANK": str(rank), "SIZE": str(size), "PORT": str(port), "CASES": "15",
        }  # fmt: skip
        nursery.start(SCRIPT, environment, log, exit_file)
        logs.append(log)
        exits.append(exit_file)
    deadline = time.monotonic() + 240
    while not all(file.exists() for file in exits) and time.monotonic() < deadline:
        time.sleep(0.02)
    found = [file.read_text() if file.exists() else "running" for file in exits]
    assert found == ["0"] * size, "\n".join(log.read_text()[-3000:] for log in logs)
