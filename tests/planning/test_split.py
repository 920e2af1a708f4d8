"""The shares sum up, stay in their bounds and no other shares finish sooner (promise 7)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rex_operator.planning.curves import Point, StepTimeCurve
from rex_operator.planning.split import Team, WorkerModel, even_split, smallest_accumulation, split
from rex_operator.planning.types import CannotPlan

curves = st.lists(st.tuples(st.integers(1, 60), st.floats(0.01, 5)), min_size=1, max_size=5).map(
    lambda rows: StepTimeCurve.fit([Point(x, t) for x, t in rows])
)
caps = st.one_of(st.none(), st.integers(1, 30))


@st.composite
def teams(draw: st.DrawFn, most: int) -> list[WorkerModel]:
    shared = draw(st.lists(curves, min_size=1, max_size=3))
    count = draw(st.integers(1, most))
    return [
        WorkerModel(f"w{i}", draw(st.sampled_from(shared)), draw(st.floats(0.3, 3)), draw(caps)) for i in range(count)
    ]


def slowest(models: list[WorkerModel], shares: dict[str, int], accumulation: int = 1) -> float:
    return float(Team(models).times([shares[m.worker_id] for m in models], accumulation).max())


@given(teams(most=4), st.integers(1, 24))
@settings(max_examples=150, deadline=None)
def test_no_other_shares_finish_sooner(models: list[WorkerModel], batch: int) -> None:
    try:
        shares = split(models, batch)
    except CannotPlan:
        assume(False)
    limits = [min(batch, m.cap or batch) for m in models]
    others = [
        slowest(models, dict(zip(shares, (*first, batch - sum(first)), strict=True)))
        for first in itertools.product(*[range(1, limit + 1) for limit in limits[:-1]])
        if 1 <= batch - sum(first) <= limits[-1]
    ]
    assert slowest(models, shares) <= min(others) * (1 + 1e-6)


@given(teams(most=12), st.integers(1, 5000), st.integers(1, 8))
@settings(deadline=None)
def test_shares_sum_up_within_their_bounds_or_the_reason_is_said(
    models: list[WorkerModel], batch: int, accumulation: int
) -> None:
    room = sum(m.cap * accumulation if m.cap else batch for m in models)
    if batch < len(models) or batch > room:
        with pytest.raises(CannotPlan):
            split(models, batch, accumulation)
        return
    shares = split(models, batch, accumulation)
    assert sum(shares.values()) == batch
    for model in models:
        share = shares[model.worker_id]
        assert share >= 1
        assert model.cap is None or -(-share // accumulation) <= model.cap


@given(teams(most=8), st.integers(20, 400), st.integers(0, 10**6))
@settings(deadline=None)
def test_moving_samples_between_two_workers_never_helps(models: list[WorkerModel], batch: int, seed: int) -> None:
    assume(len(models) >= 2)
    try:
        shares = split(models, batch)
    except CannotPlan:
        assume(False)
    rng, best = np.random.default_rng(seed), slowest(models, shares)
    by_id = {m.worker_id: m for m in models}
    for _ in range(50):
        giver, taker = rng.choice(list(shares), 2, replace=False)
        amount = int(rng.integers(1, 5))
        cap = by_id[taker].cap
        if shares[giver] - amount >= 1 and (cap is None or shares[taker] + amount <= cap):
            moved = {**shares, giver: shares[giver] - amount, taker: shares[taker] + amount}
            assert slowest(models, moved) >= best * (1 - 1e-6)


def test_unlike_devices_finish_together() -> None:
    fast = StepTimeCurve.fit([Point(x, 0.005 + 0.0002 * x) for x in (8, 64, 256)])
    slow = StepTimeCurve.fit([Point(x, 0.020 + 0.0011 * x) for x in (8, 64, 256)])
    models = [WorkerModel("a", fast), WorkerModel("b", fast), WorkerModel("c", slow)]
    times = Team(models).times(list(split(models, 512).values()), 1)
    assert times.max() / times.min() <= 1.02


def test_accumulation_keeps_a_sample_in_every_pass() -> None:
    slow = StepTimeCurve.fit([Point(8, 1.0)])
    fast = StepTimeCurve.fit([Point(8, 0.01)])
    shares = split([WorkerModel("fast", fast), WorkerModel("slow", slow)], 64, 4)
    assert shares["slow"] == 4


@pytest.mark.parametrize(("batch", "shares"), [(64, [16] * 4), (66, [17, 17, 16, 16]), (4, [1] * 4)])
def test_even_shares(batch: int, shares: list[int]) -> None:
    assert list(even_split(dict.fromkeys("abcd"), batch).values()) == shares


def test_even_shares_respect_memory() -> None:
    assert even_split({"a": None, "b": 3, "c": None}, 20) == {"a": 9, "b": 3, "c": 8}


def test_errors_say_what_is_wrong() -> None:
    with pytest.raises(CannotPlan, match="cannot give 3 workers"):
        even_split(dict.fromkeys("abc"), 2)
    with pytest.raises(CannotPlan, match="memory holds 8 samples in 1 passes"):
        even_split({"a": 4, "b": 4}, 9)
    with pytest.raises(CannotPlan, match="not even one sample fits in the memory of b"):
        even_split({"a": 4, "b": 0}, 3)
    with pytest.raises(CannotPlan, match="no worker"):
        even_split({}, 3)


def test_passes_are_added_only_when_memory_asks() -> None:
    assert smallest_accumulation([None, 4], 1000) == 1
    assert smallest_accumulation([4, 4], 8) == 1
    assert smallest_accumulation([4, 4], 9) == 2
    assert smallest_accumulation([4, 4], 64, start=3) == 8
    assert smallest_accumulation([0, 0], 8) is None
