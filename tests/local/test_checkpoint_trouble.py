"""A checkpoint volume that goes away and comes back: the run goes on, and people see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.local.scene import Watcher, make_run, play, read_lines, write_manifest

pytestmark = pytest.mark.component

SCRIPT = """
import os
from pathlib import Path
from typing import Any
import torch
import rex_worker as rex
from torch import nn
from torch.utils.data import TensorDataset
kept = Path(os.environ["REX_CHECKPOINT_DIR"])
away = kept.with_name("away")
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
with rex.init() as session:
    model, optimizer = session.prepare(model, optimizer)
    loader = session.loader(TensorDataset(torch.randn(320, 1), torch.randn(320, 1)))
    for epoch in session.epochs(3):
        for x, y in loader:
            session.backward(nn.functional.mse_loss(model(x), y))
            optimizer.step()
            if session.is_main and session.step == 8:
                kept.rename(away)
            if session.is_main and session.step == 22:
                session._keeper.flush()
                away.rename(kept)
"""


async def test_a_volume_that_went_away_for_a_while_is_told_and_ends_nothing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    watcher = Watcher()
    options: dict[str, Any] = {"checkpoint": {"path": "tiny", "everySteps": 10}, "workers": {"min": 2, "max": 2}}
    local = make_run(write_manifest(tmp_path, command=["python", str(script)], **options), tmp_path / "run", watcher)
    outcome = await play(local)
    assert outcome.result == "succeeded"
    told = [message for event, message in watcher.events if event == "checkpoint-failed"]
    assert told and all("No such file or directory" in message for message in told)
    assert told[0].startswith("checkpoint of step 10 failed: FileNotFoundError")
    assert [
        line["message"] for line in read_lines(tmp_path / "run", "event") if line["event"] == "checkpoint-failed"
    ] == told
    assert watcher.view is not None and local.summary["checkpoint_step"] == 30
