"""What scripts bring along from DistributedDataParallel is taken over or refused in words that say what to do."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.utils.data import TensorDataset

from rex_worker.ddp import check_model, wire_type
from rex_worker.errors import UsageError
from rex_worker.session import Session
from tests.worker.together import run_together

torch.manual_seed(4)
START = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1))
DATA = TensorDataset(torch.randn(40, 3))
SHARES = [6, 4]


def first_step(session: Session, hook: Any) -> dict[str, Any]:
    with session:
        model = copy.deepcopy(START)
        model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), comm_hook=hook)
        loader = session.loader(DATA)
        found: dict[str, Any] = {}
        for _ in session.epochs(1):
            for (x,) in loader:
                optimizer.zero_grad()
                session.backward(model(x).square().mean())
                if not found:
                    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
                    found = {
                        "gradient": torch.cat(gradients),
                        "mean": model.get_buffer("1.running_mean").clone(),
                        "loss": session._running()._decision.loss,
                        "types": list(session._participation.present.group.sent),  # type: ignore[attr-defined]
                    }
                optimizer.step()
    return found


@pytest.mark.parametrize(
    ("hook", "kind"),
    [
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
        (default_hooks.fp16_compress_hook, torch.float16),
        (default_hooks.bf16_compress_hook, torch.bfloat16),
    ],
)
def test_gradients_travel_compressed_and_all_else_exactly(hook: Any, kind: torch.dtype) -> None:
    plain = run_together(SHARES, lambda session: first_step(session, None))[0]
    first, second = run_together(SHARES, lambda session: first_step(session, hook))
    assert torch.equal(first["gradient"], second["gradient"]), "the same on all workers"
    error = float((first["gradient"] - plain["gradient"]).norm() / plain["gradient"].norm())
    assert 0 < error < 4 * torch.finfo(kind).eps
    assert torch.equal(first["mean"], plain["mean"]), "statistics travel as they are"
    assert first["loss"] == plain["loss"], "and so do votes"
    assert sorted(map(str, first["types"])) == sorted(map(str, [kind, torch.float32]))


def test_without_a_hook_all_travels_together() -> None:
    found = run_together(SHARES, lambda session: first_step(session, default_hooks.allreduce_hook))[0]
    assert found["types"] == [torch.float32], "gradients, statistics and votes in one collective"


def test_a_single_worker_compresses_nothing() -> None:
    plain = run_together([10], lambda session: first_step(session, None))[0]
    hooked = run_together([10], lambda session: first_step(session, "bf16"))[0]
    assert torch.equal(plain["gradient"], hooked["gradient"])


@pytest.mark.parametrize("hook", [powerSGD_hook.powerSGD_hook, "int8", lambda state, bucket: None, [], 3])
def test_other_hooks_are_refused_by_name(hook: Any) -> None:
    with pytest.raises(UsageError, match=r"comm_hook=.* cannot be combined with unlike shares.*'fp16' and 'bf16'"):
        wire_type(hook)


def test_a_wrapped_model_is_refused(tmp_path: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
        for model in (wrapped, nn.Sequential(wrapped)):
            with pytest.raises(UsageError, match=r"DistributedDataParallel.*give session\.prepare the plain model"):
                check_model(model)
    finally:
        dist.destroy_process_group()


def test_layers_that_talk_to_other_workers_are_refused() -> None:
    with pytest.raises(UsageError, match=r"1 is a SyncBatchNorm.*use BatchNorm"):
        check_model(nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)))


@pytest.mark.parametrize(
    ("words", "settings"),
    [("GradScaler", {"scaler": torch.amp.GradScaler("cpu")}), ("comm_hook", {"comm_hook": "bf16"})],
)
def test_a_sharded_model_takes_neither_a_scaler_nor_a_hook(words: str, settings: dict[str, Any]) -> None:
    def script(session: Session) -> None:
        model: Any = copy.deepcopy(START)
        session.prepare(model, torch.optim.SGD(model.parameters()), shard=lambda *_: None, **settings)

    with pytest.raises(UsageError, match=f"{words} does not go with shard"):
        run_together([4], script)
