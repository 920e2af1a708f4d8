"""C-110: the rate is base x factor at each update, whatever came before."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rex_worker.errors import UsageError
from rex_worker.gate import LateGate
from rex_worker.optimizer import ElasticOptimizer, ElasticScheduler, scaled_rates


class Loop:
    """A loop whose plan a test sets."""

    def __init__(self) -> None:
        self.learning_rate_factor = 1.0
        self.clear, self.update, self.schedule = True, True, True
        self.updates = 0

    def may_clear(self) -> bool:
        return self.clear

    def take_update(self) -> bool:
        return self.update

    def updated(self) -> None:
        self.updates += 1

    def may_schedule(self) -> bool:
        return self.schedule

    def schedule_steps(self) -> int:
        return 1


def weight(**settings: Any) -> tuple[torch.nn.Parameter, torch.optim.SGD]:
    parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    return parameter, torch.optim.SGD([parameter], **settings)


def test_c_110_factors_never_compound_and_survive_a_crash_at_each_point() -> None:
    parameter, inner = weight(lr=0.1)
    loop = Loop()
    optimizer = ElasticOptimizer(inner, loop)
    for batch in (256, 512, 256, 1024, 256):
        loop.learning_rate_factor = batch / 256
        parameter.grad = torch.ones(1, dtype=torch.float64)
        before = float(parameter.detach())
        optimizer.step()
        assert before - float(parameter.detach()) == pytest.approx(0.1 * batch / 256)
        assert optimizer.param_groups[0]["lr"] == inner.param_groups[0]["lr"] == 0.1
        _, again = weight(lr=0.7)
        again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        assert again.param_groups[0]["lr"] == 0.1


@given(factors=st.lists(st.floats(0.01, 100), max_size=20))
@settings(deadline=None)
def test_any_schedule_keeps_its_base_rate_under_any_factors(factors: list[float]) -> None:
    (_, plain), (parameter, inner) = weight(lr=0.3), weight(lr=0.3)
    loop = Loop()
    optimizer = ElasticOptimizer(inner, loop)
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=7) for o in (plain, optimizer)]
    for factor in factors:
        loop.learning_rate_factor = factor
        parameter.grad = torch.ones(1, dtype=torch.float64)
        plain.step()
        optimizer.step()
        for schedule in schedules:
            schedule.step()
        assert plain.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


def test_a_rate_kept_as_a_tensor_is_scaled_and_put_back() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    rate = torch.tensor(0.5)
    loop = Loop()
    loop.learning_rate_factor = 3.0
    inner = torch.optim.Adam([parameter], lr=rate)
    parameter.grad = torch.ones(1)
    ElasticOptimizer(inner, loop).step()
    assert inner.param_groups[0]["lr"] is rate and float(rate) == 0.5
    assert float(parameter.detach()) == pytest.approx(-1.5)


def test_in_the_middle_of_a_step_nothing_is_cleared_updated_or_scheduled() -> None:
    parameter, inner = weight(lr=0.1)
    loop = Loop()
    loop.clear = loop.update = loop.schedule = False
    optimizer = ElasticOptimizer(inner, loop)
    schedule = ElasticScheduler(torch.optim.lr_scheduler.StepLR(inner, 1), loop)
    parameter.grad = torch.ones(1, dtype=torch.float64)
    optimizer.zero_grad()
    optimizer.step()
    schedule.step()
    assert parameter.grad is not None and float(parameter.detach()) == 0 and loop.updates == 0
    assert schedule.get_last_lr() == [0.1]
    loop.clear = loop.update = loop.schedule = True
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    assert parameter.grad is None and loop.updates == 1 and inner.param_groups[0]["lr"] == pytest.approx(0.01)


def test_wrong_uses_are_refused() -> None:
    _, inner = weight(lr=0.1)
    optimizer = ElasticOptimizer(inner, LateGate())
    with pytest.raises(UsageError, match="belongs inside the loop"):
        optimizer.step()
    with pytest.raises(UsageError, match="closure"):
        optimizer.step(lambda: 0.0)
    with pytest.raises(UsageError, match=r"before session\.prepare"):
        optimizer.add_param_group({"params": []})
    with pytest.raises(UsageError, match=r"optimizer\.state_dict"):
        copy.copy(optimizer)


def test_a_tensor_that_two_groups_share_is_scaled_once_and_none_is_left_alone() -> None:
    first, second, third = (torch.nn.Parameter(torch.zeros(1)) for _ in range(3))
    rate = torch.tensor(0.5)
    groups: list[dict[str, Any]] = [{"params": [first]}, {"params": [second]}, {"params": [third], "lr": 0.25}]
    inner = torch.optim.SGD(groups, lr=rate)
    with scaled_rates(inner, 3.0):
        seen = [float(group["lr"]) for group in inner.param_groups]
    assert seen == [1.5, 1.5, 0.75]
    assert [group["lr"] is rate for group in inner.param_groups] == [True, True, False] and float(rate) == 0.5
    inner.param_groups[2]["lr"] = None
    with scaled_rates(inner, 3.0):
        assert inner.param_groups[2]["lr"] is None


def test_a_factor_of_one_touches_nothing() -> None:
    _, inner = weight(lr=0.1)
    before = inner.param_groups[0]["lr"]
    with scaled_rates(inner, 1.0):
        assert inner.param_groups[0]["lr"] is before


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
def test_a_captured_update_reads_the_scaled_rate() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1, device="cuda"))
    parameter.grad = torch.ones(1, device="cuda")
    inner = torch.optim.Adam([parameter], lr=torch.tensor(0.5, device="cuda"), capturable=True)
    inner.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inner.step()
    before = float(parameter.detach())
    with scaled_rates(inner, 3.0):
        graph.replay()
    torch.cuda.synchronize()
    assert before - float(parameter.detach()) == pytest.approx(1.5, rel=1e-4)
