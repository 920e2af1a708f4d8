"""A worker that is alone tells the gradient norm of a step's first pass, for its noise scale to be known."""

from __future__ import annotations

import pytest
import torch

from rex_worker.sampler import permutation
from tests.worker.test_gradient_scaler import DATA, SIZE, START, train
from tests.worker.together import run_together


def test_the_first_of_several_passes_is_told_unscaled_as_its_own_mean() -> None:
    (result,) = run_together([9], train, accumulation=3)
    report = result["reports"][0]
    rows = torch.as_tensor(permutation(7, 0, SIZE)[: report.first_pass])
    START.zero_grad()
    torch.autograd.backward(START(DATA.tensors[0][rows]).square().mean())
    square = sum(float(p.grad.square().sum()) for p in START.parameters() if p.grad is not None)
    START.zero_grad()
    assert report.first_pass == 3
    assert report.first_pass_sq == pytest.approx(square, rel=1e-6)
    assert report.first_pass_sq != report.global_grad_sq


@pytest.mark.parametrize(("shares", "passes"), [([9], 1), ([6, 6], 3)])
def test_nobody_else_pays_for_it(shares: list[int], passes: int) -> None:
    for result in run_together(shares, train, accumulation=passes):
        assert all(report.first_pass_sq is None and report.first_pass == 0 for report in result["reports"])
