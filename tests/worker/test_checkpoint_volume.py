"""A real small volume: full, read-only, and whole again; and a job that ends only when its result is on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rex_worker
from rex_worker.protocol import Checkpointed, Left
from tests.worker.operator_double import Operator

pytestmark = pytest.mark.component

VOLUME = """
import json, os, subprocess, sys
from pathlib import Path
import torch
from rex_worker.checkpoint import CheckpointFolder, snapshot
kept = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(kept)], check=True)
folder = CheckpointFolder(kept, keep=2)
told = {}
def save(name, step, numbers):
    try:
        folder.save(snapshot({"weights": torch.full((numbers,), float(step))}, step, step))
        told[name] = "saved"
    except OSError as error:
        told[name] = os.strerror(error.errno)
    loaded, newest = folder.load_newest()
    assert torch.equal(loaded["weights"], torch.full_like(loaded["weights"], float(newest)))
    told[name] += f", {newest} is there"
save("small", 10, 300_000)
save("second", 20, 300_000)
save("too large", 30, 900_000)
save("third", 40, 300_000)
subprocess.run(["mount", "-o", "remount,ro", str(kept)], check=True)
save("read-only", 50, 300_000)
subprocess.run(["mount", "-o", "remount,rw", str(kept)], check=True)
save("again", 60, 300_000)
told["left"] = sorted(path.name for path in kept.iterdir())
print(json.dumps(told))
"""


def can_mount() -> bool:
    mount = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not can_mount(), reason="this machine lets nobody mount a small volume")
def test_c_113_a_full_volume_and_a_read_only_one_keep_the_newest(tmp_path: Path) -> None:
    script, kept = tmp_path / "volume.py", tmp_path / "kept"
    script.write_text(VOLUME)
    kept.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(Path(rex_worker.__file__).parents[1])}
    command = ["unshare", "-rm", sys.executable, str(script), str(kept)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "small": "saved, 10 is there",
        "second": "saved, 20 is there",
        "too large": "No space left on device, 20 is there",
        "third": "saved, 40 is there",
        "read-only": "Read-only file system, 40 is there",
        "again": "saved, 60 is there",
        "left": ["step-000000000040", "step-000000000060"],
    }


FINAL = """
import os, time
from pathlib import Path
import torch
import rex_worker as rex
from rex_worker.checkpoint import CheckpointFolder
from torch import nn
from torch.utils.data import TensorDataset
real = CheckpointFolder.save
def save(self, taken, final=False):
    Path(os.environ["HERE"], "saving").touch()
    while not Path(os.environ["HERE"], "go-on").exists():
        time.sleep(0.01)
    real(self, taken, final)
CheckpointFolder.save = save
torch.manual_seed(4)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(60, 6), torch.randn(60, 1))
with rex.init() as session:
    model, optimizer = session.prepare(model, optimizer)
    loader = session.loader(data)
    for epoch in session.epochs(1):
        for x, y in loader:
            session.backward(nn.functional.mse_loss(model(x), y))
            optimizer.step()
"""


async def test_c_083_nobody_finishes_before_the_final_checkpoint_is_safe(rex: Operator, tmp_path: Path) -> None:
    script = tmp_path / "final.py"
    script.write_text(FINAL)
    place = {"HERE": str(tmp_path), "REX_CHECKPOINT_DIR": str(tmp_path / "kept")}
    workers = [await rex.start(name, script, **place) for name in ("w0", "w1")]
    await rex.ready(*workers)
    await rex.form(1, {"w0": 10, "w1": 20})
    await rex.until_true("the final save", (tmp_path / "saving").exists)
    assert not any(worker.said(Left) for worker in workers)
    assert not any(worker.exit_file.exists() for worker in workers)
    (tmp_path / "go-on").touch()
    assert await rex.ended(*workers) == [0, 0]
    kinds = [message.kind for message in workers[0].messages if isinstance(message, Checkpointed | Left)]
    assert kinds == ["Checkpointed", "Left"]
    assert (tmp_path / "kept" / "step-000000000002-final" / "manifest.json").exists()
