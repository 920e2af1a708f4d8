"""Where a price or energy counts, the planner tells which workers do not pay for themselves, and changes nothing."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rex_operator.planning.advice import Advice, Floor, TeamQuestion, Terms, advise, plans_of
from rex_operator.planning.communication import Law
from rex_operator.planning.curves import Point, StepTimeCurve
from rex_operator.planning.power import DevicePower
from rex_operator.planning.prediction import predict
from rex_operator.planning.split import WorkerModel

TERMS = Terms(0.004, 64, 1024, 64, 1, 400.0, 0.02)
FAST, SLOW = (0.006, 0.0002), (0.02, 0.0022)


def curve(fixed: float, each: float) -> StepTimeCurve:
    sizes = (1.0, 8.0, 64.0, 512.0, 2048.0)
    return StepTimeCurve.fit([Point(b, fixed + each * b, 1e-6) for b in sizes])


def team(*devices: tuple[float, float]) -> list[WorkerModel]:
    curves = {device: curve(*device) for device in devices}
    return [WorkerModel(f"w{i}", curves[device]) for i, device in enumerate(devices)]


def asked(pools: str, prices: tuple[float, ...], workers_min: int = 1, **floors: Floor) -> TeamQuestion:
    return TeamQuestion(tuple(pools), floors, workers_min, prices=prices)


def test_a_slow_worker_that_costs_as_much_does_not_pay_for_itself() -> None:
    found = advise(team(FAST, FAST, SLOW), asked("aab", (1.0, 1.0, 1.0), workers_min=2), TERMS)
    assert found is not None
    assert found.counts == {"b": 0}
    assert found.best.without == ("w2",)
    assert 0.15 < found.best.saving < 0.40
    assert 0 < found.best.slower < 0.2


def test_a_slow_worker_that_costs_little_stays() -> None:
    found = advise(team(FAST, FAST, SLOW), asked("aab", (1.0, 1.0, 0.05), workers_min=3), TERMS)
    assert found is None
    assert advise(team(FAST, FAST, SLOW), asked("aab", (1.0, 1.0, 0.0), workers_min=2, a=Floor(2)), TERMS) is None


def test_the_dear_one_goes_where_the_cheap_one_does_as_much() -> None:
    found = advise(team(FAST, FAST), asked("ab", (3.0, 1.0)), TERMS)
    assert found is not None
    assert found.counts == {"a": 0}
    assert found.best.saving > 0.5


def test_minimums_of_job_and_pool_and_whole_pods_are_kept() -> None:
    models, prices = team(FAST, FAST, SLOW, SLOW, SLOW, SLOW), (1.0,) * 6
    found = advise(models, asked("aabbbb", prices, workers_min=2, a=Floor(2), b=Floor(1)), TERMS)
    assert found is not None
    assert found.counts == {"b": 1}
    found = advise(models, asked("aabbbb", prices, workers_min=3, a=Floor(2), b=Floor(0, together=2)), TERMS)
    assert found is not None
    assert found.counts == {"b": 2}
    assert advise(models, asked("aabbbb", prices, workers_min=6), TERMS) is None


def test_of_a_pools_workers_the_slowest_go() -> None:
    models = team(FAST, FAST, FAST)
    models[1] = replace(models[1], slowness=3.0)
    found = advise(models, asked("aaa", (1.0, 1.0, 1.0), workers_min=2), TERMS)
    assert found is not None
    assert found.best.without == ("w1",)


def test_one_worker_and_a_free_team_get_no_advice() -> None:
    assert advise(team(FAST), asked("a", (1.0,)), TERMS) is None
    assert advise(team(FAST, SLOW), asked("ab", (0.0, 0.0)), TERMS) is None


def test_free_workers_do_it_where_they_can() -> None:
    found = advise(team(FAST, SLOW), asked("ab", (1.0, 0.0)), TERMS)
    assert found is not None
    assert found.counts == {"a": 0}
    assert found.best.saving == 1.0
    assert found.best.slower > 1


def test_alike_workers_pay_for_themselves_though_fewer_would_be_cheaper() -> None:
    models, prices = team(FAST, FAST, FAST, FAST), (1.0, 1.0, 1.0, 1.0)
    assert _by_hand(models[:1], prices[:1])[0] < _by_hand(models, prices)[0]
    assert advise(models, asked("aaaa", prices), TERMS) is None


def test_the_way_to_the_cheapest_team_is_told_step_by_step() -> None:
    found = advise(team(FAST, FAST, SLOW), asked("abc", (1.0, 2.0, 1.0)), TERMS)
    assert found is not None
    assert found.counts == {"b": 0, "c": 0}
    assert [step.without for step in found.steps] == [("w2",), ("w1", "w2")]
    assert [s.saving for s in found.steps] == sorted(s.saving for s in found.steps)


def test_a_smaller_team_is_spared_what_the_larger_one_exchanges() -> None:
    models, question = team(FAST, FAST, FAST, FAST), asked("aaaa", (1.0,) * 4)
    dear = replace(question, law=Law(other_s=0.002, alpha_s=0.01, beta_s=0.08))
    assert advise(models, question, TERMS) is None
    found = advise(models, dear, TERMS)
    assert found is not None
    assert found.counts["a"] <= 2
    assert found.best.slower < 0, "it is even faster"


def test_energy_drops_who_draws_much_for_little_work() -> None:
    thrifty, thirsty = DevicePower(10, 100), DevicePower(60, 300)
    question = TeamQuestion(("a", "a", "b"), {}, 2, powers=(thrifty, thrifty, thirsty))
    found = advise(team(FAST, FAST, SLOW), question, TERMS)
    assert found is not None
    assert found.counts == {"b": 0}
    assert not found.by_price


def test_no_batch_that_fits_is_no_advice() -> None:
    models = [replace(model, cap=1) for model in team(FAST, SLOW)]
    assert advise(models, asked("ab", (1.0, 1.0)), replace(TERMS, batch_min=1024, batch_max=1024)) is None


def _by_hand(models: list[WorkerModel], prices: tuple[float, ...]) -> tuple[float, float]:
    """Price and seconds of a useful sample at the best of the same plans."""
    plans = plans_of(models, TERMS)
    seconds = predict(models, TERMS.overhead_s, plans)
    batch = np.array([b for b, _ in plans])
    best = float(np.nanmin(seconds / (batch * (400 + 64) / (400 + batch))))
    return best * sum(prices), best


@given(
    st.lists(st.tuples(st.sampled_from([FAST, SLOW, (0.01, 0.0006)]), st.floats(0.1, 3.0)), min_size=2, max_size=4),
)
@settings(max_examples=25, deadline=None)
def test_advice_is_true_and_no_single_cut_more_would_pay(devices: list[tuple[tuple[float, float], float]]) -> None:
    models, prices = team(*(d for d, _ in devices)), tuple(p for _, p in devices)
    pools = "abcd"[: len(models)]  # each in a pool of its own: every subset is a team
    found: Advice | None = advise(models, asked(pools, prices), TERMS)
    kept = [i for i, pool in enumerate(pools) if found is None or found.counts.get(pool, 1) == 1]
    before = _by_hand(models, prices)
    own = _by_hand([models[i] for i in kept], tuple(prices[i] for i in kept))
    if found is not None:
        assert found.best.saving == pytest.approx(1 - own[0] / before[0], abs=1e-9)
        assert found.best.slower == pytest.approx(own[1] / before[1] - 1, abs=1e-9)
        assert own[0] * own[1] < before[0] * before[1]
    gain = 1 + TERMS.margin - 1e-12
    for rest in itertools.combinations(kept, len(kept) - 1):
        if rest:
            cost, time = _by_hand([models[i] for i in rest], tuple(prices[i] for i in rest))
            assert cost * gain > own[0] or cost * time * gain > own[0] * own[1]
