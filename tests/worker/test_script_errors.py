from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from rex_worker.protocol import Failed, Left
from tests.worker.operator_double import Operator

pytestmark = pytest.mark.component

LOOP = """
import torch, rex_worker as rex
from torch.utils.data import TensorDataset
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(40, 2), torch.randn(40, 1))
with rex.init() as session:
    model, optimizer = session.prepare(model, optimizer)
    loader = session.loader(data)
    for epoch in session.epochs(2):
{body}
"""
STEP = """
for x, y in loader:
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    {backward}
    {after}
"""


def loop(body: str) -> str:
    return LOOP.format(body=textwrap.indent(body, " " * 8))


CASES = {
    "raises": (
        loop(STEP.format(backward="session.backward(loss)", after="raise ValueError('the model is broken')")),
        "ValueError: the model is broken",
    ),
    "never trains": (
        "import rex_worker as rex\nwith rex.init() as session:\n    pass\n",
        "the script ended without training: iterate session.epochs",
    ),
    "never iterates the loader": (loop("pass\n"), "epoch 0 was not trained to its end"),
    "plain backward": (
        loop(STEP.format(backward="loss.backward()", after="optimizer.step()")),
        "optimizer.step() before session.backward(loss): replace loss.backward() by it",
    ),
    "no update": (
        loop(STEP.format(backward="session.backward(loss)", after="pass")),
        "optimizer.step() was not called after session.backward(loss)",
    ),
    "twice": (
        loop(STEP.format(backward="session.backward(loss)", after="session.backward((model(x) - y).mean())")),
        "session.backward was called twice for one batch",
    ),
    "no scalar": (
        loop(STEP.format(backward="session.backward((model(x) - y).square())", after="optimizer.step()")),
        "needs the mean loss of the batch, one number with a gradient; got shape (8, 1)",
    ),
    "leaves by sys.exit": (loop("raise SystemExit\n"), "the script called sys.exit before its last epoch ended"),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_wrong_script_fails_with_words_that_say_what_to_do(rex: Operator, case: str) -> None:
    script, words = CASES[case]
    worker = await rex.start("w0", script)
    if case != "never trains":
        await rex.ready(worker)
        await rex.form(1, {"w0": 8})
    code = await rex.end_of(worker)
    (failed,) = worker.said(Failed)
    assert words in failed.error
    assert not worker.said(Left)
    assert code == 1


async def test_a_checkpoint_folder_that_is_not_writable_is_named_at_the_start(rex: Operator, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    worker = await rex.start("w0", loop("pass\n"), REX_CHECKPOINT_DIR=str(blocked / "kept"))
    assert await rex.end_of(worker) == 1
    assert f"the checkpoint folder {blocked / 'kept'} is not writable" in worker.text()
