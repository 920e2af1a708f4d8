"""A real GPU whose memory is too small for the batch: the script trains on, with the same result."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import rex_worker as rex
from rex_worker.protocol import StepReport
from rex_worker.sampler import permutation

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")]

ALLOWED = 2**30
"""Bytes that the process may have."""
SAMPLES, WIDTH, LAYERS = 4096, 4096, 24
"""Activations of a whole batch: 24 x 4096 x 4096 x 4 bytes, 1.5 GiB and as much again for their gradients."""


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("REX_CHANNEL_URL", "REX_CHECKPOINT_DIR", "REX_EMULATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("REX_JOB_SEED", "5")
    before = torch.cuda.get_per_process_memory_fraction()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(ALLOWED / torch.cuda.get_device_properties(0).total_memory)
    yield
    torch.cuda.set_per_process_memory_fraction(before)
    torch.cuda.empty_cache()


class Wide(nn.Module):
    """Few parameters, large activations."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.gains = nn.ParameterList([nn.Parameter(torch.rand(WIDTH) / WIDTH**0.5) for _ in range(LAYERS)])
        self.passes: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes.append(len(x))
        wide = x.expand(-1, WIDTH)
        for gain in self.gains:
            wide = torch.tanh(wide * gain + wide)
        return wide.mean(1, keepdim=True)


def test_c_171_a_real_lack_of_memory_in_the_forward_pass_changes_nothing_but_the_passes(little_memory: None) -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(2 * SAMPLES, 1), torch.randn(2 * SAMPLES, 1))
    model = Wide()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with rex.init() as session:
        trained, optimizer = session.prepare(model, optimizer)
        loader = session.loader(data, batch_size=SAMPLES)
        for _ in session.epochs(1):
            for x, y in loader:
                optimizer.zero_grad()
                session.backward(nn.functional.mse_loss(trained(x), y))
                optimizer.step()
        assert session.step == 2
    assert model.passes[:2] == [SAMPLES, 2]
    assert max(model.passes[2:]) < SAMPLES
    expected = Wide().cuda()
    for indices in torch.split(torch.as_tensor(permutation(5, 0, len(data))), SAMPLES):
        expected.zero_grad()
        for part in torch.split(indices, 256):
            x, y = (tensor[part].cuda() for tensor in data.tensors)
            torch.autograd.backward(nn.functional.mse_loss(expected(x), y, reduction="sum") / SAMPLES)
        with torch.no_grad():
            for gain in expected.gains:
                assert gain.grad is not None
                gain -= 0.1 * gain.grad
    for ours, theirs in zip(model.gains, expected.gains, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_steps_tell_their_peak_and_the_devices_own_time(little_memory: None, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[StepReport] = []
    monkeypatch.setattr("rex_worker.link.AloneLink.report", lambda link, generation, report: reports.append(report))
    data = TensorDataset(torch.randn(4096, 1), torch.randn(4096, 1))
    model = Wide()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with rex.init() as session:
        trained, optimizer = session.prepare(model, optimizer)
        loader = session.loader(data, batch_size=512)
        for _ in session.epochs(1):
            for x, y in loader:
                optimizer.zero_grad()
                session.backward(nn.functional.mse_loss(trained(x), y))
                optimizer.step()
    assert len(reports) == 8
    activations = LAYERS * 512 * WIDTH * 4
    for report in reports[1:]:
        assert activations < report.peak_bytes < ALLOWED
        assert 0 < report.compute_s <= report.step_s
        assert report.wait_s == 0 and report.comm_s is not None
