"""Two resumes of one job on the same workers are the same training, though each worker draws its own numbers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rex_worker.protocol import Stop
from tests.worker.operator_double import Operator

pytestmark = pytest.mark.component

DROPOUT = """
import hashlib, json, os
from pathlib import Path
import torch
import rex_worker as rex
from torch import nn
from torch.utils.data import TensorDataset
torch.manual_seed(4)  # the same on all workers, as scripts do
model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(120, 6), torch.randn(120, 1))
torch.manual_seed(os.getpid())  # and what it draws afterwards differs from life to life
drawn = []
with rex.init() as session:
    model, optimizer = session.prepare(model, optimizer)
    loader = session.loader(data)
    for epoch in session.epochs(int(os.environ["EPOCHS"])):
        for x, y in loader:
            drawn.append(float(torch.rand(())))
            session.backward(nn.functional.mse_loss(model(x), y))
            optimizer.step()
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    end = {"step": session.step, "weights": hashlib.sha256(weights).hexdigest(), "drawn": drawn}
    Path(os.environ["OUT"]).write_text(json.dumps(end))
"""


async def test_the_same_resume_gives_the_same_weights(rex: Operator, tmp_path: Path) -> None:
    script, kept = tmp_path / "dropout.py", tmp_path / "kept"
    script.write_text(DROPOUT)
    endless = {"EPOCHS": "100000", "OUT": "/nowhere", "REX_CHECKPOINT_DIR": str(kept)}
    first = [await rex.start(name, script, **endless) for name in ("w0", "w1")]
    await rex.ready(*first)
    await rex.form(1, {"w0": 10, "w1": 20})
    await rex.reached(7, *first)
    await rex.send(Stop(reason="suspended"), *first)
    assert await rex.ended(*first) == [0, 0]
    (checkpoint,) = kept.iterdir()
    step = int(checkpoint.name.removeprefix("step-"))
    ends = []
    for generation, life in ((2, "a"), (3, "b")):
        shutil.copytree(kept, tmp_path / life)
        workers = [
            await rex.start(
                name,
                script,
                EPOCHS=str(step // 4 + 3),
                OUT=str(tmp_path / f"{life}-{name}"),
                REX_CHECKPOINT_DIR=str(tmp_path / life),
            )
            for name in ("w0", "w1")
        ]
        await rex.ready(*workers)
        await rex.form(generation, {"w0": 10, "w1": 20}, min_step=step)
        assert await rex.ended(*workers) == [0, 0]
        ends.append([json.loads((tmp_path / f"{life}-{name}").read_text()) for name in ("w0", "w1")])
    assert ends[0] == ends[1]
    main, other = ends[0]
    assert main["weights"] == other["weights"] and main["step"] == other["step"] > step
    assert not set(main["drawn"]) & set(other["drawn"]), "no two workers draw the same numbers"
