"""The memory of a real GPU: what a trial foresees, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rex_worker.guard import Call, ForwardGuard
from rex_worker.memory import CudaMeter, is_out_of_memory
from rex_worker.probe import Replay

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")]


def test_on_a_real_device_memory_is_foreseen_within_the_head_room() -> None:
    device = torch.device("cuda", 0)
    model = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(2048, 2048), nn.GELU())]).to(device)
    meter = CudaMeter(device)
    guard = ForwardGuard(model, device, meter)
    replay = Replay(guard, device, meter)

    def step(samples: int) -> tuple[Call, int]:
        model.zero_grad()
        meter.restart()
        x = torch.randn(samples, 2048, device=device)
        torch.autograd.backward(guard(x).square().mean())
        torch.cuda.synchronize()
        peak = meter.peak()
        model.zero_grad()
        return Call((x,), {}, samples, device), peak

    step(4096)  # workspaces of the libraries come once
    call, peak = step(4096)
    resident = meter.used()
    beyond = max(1.0, (peak - resident) / replay.needs(call, 4096))
    foreseen = resident + beyond * replay.needs(call, 16384)
    del call
    _, real = step(16384)
    assert foreseen == pytest.approx(real, rel=0.05)


def test_c_171_on_a_real_device_a_size_beyond_its_memory_is_refused() -> None:
    device = torch.device("cuda", 0)
    model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)).to(device)
    meter = CudaMeter(device)
    guard = ForwardGuard(model, device, meter)
    replay = Replay(guard, device, meter)
    huge = meter.total // (3 * 4 * 1024)
    assert replay.verdict(huge) is None
    meter.restart()
    x = torch.randn(1024, 1024, device=device)
    torch.autograd.backward(guard(x).square().mean())
    guard.recorded = Call((x,), {}, 1024, device)
    replay.try_out()
    assert replay.verdict(huge)
    assert torch.cuda.memory_allocated(device) < meter.total // 2


def test_a_real_lack_of_memory_is_known_as_one() -> None:
    device = torch.device("cuda", 0)
    with pytest.raises(RuntimeError) as caught:
        torch.empty(CudaMeter(device).total + 2**30, dtype=torch.uint8, device=device)
    assert is_out_of_memory(caught.value, device)
    with pytest.raises(RuntimeError) as caught:
        torch.randn(2, 3, device=device) @ torch.randn(2, 3, device=device)
    assert not is_out_of_memory(caught.value, device)
