"""The factor on the base rate climbs at a bounded pace, falls at once, and is part of the training state."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rex_worker.protocol import Plan
from rex_worker.rates import Rates, is_adaptive, memory, warmth
from tests.worker.operator_double import make_plan


def optimizer(name: str = "SGD", **settings: object) -> torch.optim.Optimizer:
    made: torch.optim.Optimizer = getattr(torch.optim, name)([torch.nn.Parameter(torch.zeros(2, 2))], **settings)
    return made


def plan(factor: float, warmup_samples: int = 0) -> Plan:
    return make_plan(1, 1, {"w0": 8}, learning_rate_factor=factor, warmup_samples=warmup_samples)


def taken(rates: Rates, steps: list[Plan]) -> list[float]:
    """The factors of one update under each plan."""
    factors = []
    for step in steps:
        factors.append(rates.factor(step, 10**9))
        rates.applied(step)
    return factors


def test_it_climbs_at_the_pace_of_the_momentum_and_falls_at_once() -> None:
    rates = Rates(optimizer(lr=0.1, momentum=0.9))
    assert taken(rates, [plan(1.0)] * 2) == [1.0, 1.0]
    up = taken(rates, [plan(2.0)] * 10)
    assert up == pytest.approx([min(2.0, 0.9**-n) for n in range(1, 11)])
    assert taken(rates, [plan(0.5)]) == [0.5]


def test_the_first_update_of_a_training_has_nothing_to_climb_from() -> None:
    rates = Rates(optimizer("Adam"))
    assert rates.state_dict() == {"reached": None}
    assert taken(rates, [plan(4.0), plan(8.0)]) == [4.0, pytest.approx(4.0 / 0.999)]


factors = st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0, 32.0])


@given(st.lists(factors, min_size=1, max_size=60), st.sampled_from(["SGD", "Adam", "RMSprop"]))
def test_c_110_a_crash_at_any_point_changes_no_rate(path: list[float], name: str) -> None:
    steps = [plan(factor) for factor in path]
    whole = taken(Rates(optimizer(name)), steps)
    for crash in range(len(steps)):
        before, after = Rates(optimizer(name)), Rates(optimizer(name))
        first = taken(before, steps[:crash])
        before.factor(steps[crash], 10**9)  # in flight when it happened; a void step, too, is asked for and not applied
        after.load_state_dict(json.loads(json.dumps(before.state_dict())))
        assert first + taken(after, steps[crash:]) == whole


@given(st.lists(factors, max_size=60), st.sampled_from(["SGD", "Adam", "RMSprop"]))
def test_c_110_no_path_ends_above_its_end(path: list[float], name: str) -> None:
    made = optimizer(name)
    steps = [*(plan(factor) for factor in path), plan(1.0)]
    reached = taken(Rates(made), steps)
    for before, now, step in zip([steps[0].learning_rate_factor, *reached], reached, steps, strict=False):
        assert now <= step.learning_rate_factor
        assert now <= max(before, min(step.learning_rate_factor, before / memory(made))) * (1 + 1e-12)
    fell = min([1.0, *path]) == 1.0
    assert reached[-1] == 1.0 if fell else 0.25 <= reached[-1] <= 1.0


@pytest.mark.parametrize(("name", "settings", "kept", "adaptive"), [
    ("SGD", {}, 0.9, False),
    ("SGD", {"momentum": 0.95}, 0.95, False),
    ("ASGD", {}, 0.9, False),
    ("Adam", {}, 0.999, True),
    ("AdamW", {"betas": (0.9, 0.95)}, 0.95, True),
    ("Adamax", {}, 0.999, True),
    ("NAdam", {}, 0.999, True),
    ("RAdam", {}, 0.999, True),
    ("SparseAdam", {}, 0.999, True),
    ("RMSprop", {}, 0.99, True),
    ("RMSprop", {"alpha": 1.0}, 0.9999, True),
    ("Adadelta", {"rho": 0.95}, 0.95, True),
    ("Adagrad", {}, 0.9, True),
    ("Adafactor", {}, 0.9, True),
    ("Rprop", {}, 0.9, True),
])  # fmt: skip
def test_what_is_known_of_each_optimizer(name: str, settings: dict[str, object], kept: float, adaptive: bool) -> None:
    made = optimizer(name, **settings)
    assert memory(made) == pytest.approx(kept)
    assert is_adaptive(made) is adaptive


def test_the_slowest_of_several_groups_sets_the_pace() -> None:
    two = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    made = torch.optim.SGD([{"params": two[:1], "momentum": 0.5}, {"params": two[1:], "momentum": 0.99}], lr=0.1)
    assert memory(made) == 0.99


def test_the_warm_up_goes_by_samples_and_is_not_held_back_by_the_climb() -> None:
    rates, step = Rates(optimizer(momentum=0.9)), plan(1.0, warmup_samples=1000)
    assert [rates.factor(step, samples) for samples in (10, 500, 1000, 5000)] == [0.01, 0.5, 1.0, 1.0]
    rates.applied(step)
    longer = plan(1.0, warmup_samples=4000)
    assert rates.factor(longer, 1000) == 0.25, "a batch that asks for a longer one is back in it"


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_a_warm_up_is_a_share_of_the_rate(samples: int, length: int) -> None:
    assert 0 <= warmth(samples, length) <= 1
    assert warmth(samples, length) == 1 or samples < length


@pytest.mark.parametrize("reached", [0.0, -1.0, math.inf, math.nan, "much"])
def test_what_is_no_factor_is_not_taken_over(reached: object) -> None:
    with pytest.raises(ValueError, match="must be a positive number"):
        Rates(optimizer()).load_state_dict({"reached": reached})
