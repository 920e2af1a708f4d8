"""What a step costs beside computing: the hidden part is found where data tell it, and else the cost stays plain."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rex_operator.planning.communication import MAX_KEPT, Communication, Exchanges, KeptExchange, Law, fit, plain
from rex_operator.planning.history import History
from rex_operator.planning.prediction import computing, predict
from rex_operator.planning.split import WorkerModel
from tests.planning.test_split import curves

laws = st.builds(
    Law,
    other_s=st.floats(0, 0.1),
    alpha_s=st.floats(0, 0.5),
    beta_s=st.floats(0, 0.05),
    power=st.sampled_from([1.0, 1.5, 3.0, 10.0]),
    behind=st.sampled_from([0.0]),
) | st.builds(Law, other_s=st.floats(0, 0.1), alpha_s=st.floats(0, 0.5), behind=st.sampled_from([1 / 6, 2 / 3]))


def measured(law: Law, teams: tuple[int, ...], passes: tuple[float, ...], noise: float, seed: int = 0,
             told: bool = False) -> list[KeptExchange]:  # fmt: skip
    rng, found = np.random.default_rng(seed), []
    for workers in teams:
        for batch, last in enumerate(passes, start=1):
            cost = law.at(workers)
            overhead = float(cost.overhead(last, 1)) * (1 + noise * rng.normal())
            comm = overhead - law.other_s if told else None
            found.append(
                KeptExchange(
                    workers=workers,
                    global_batch=batch,
                    accumulation=1,
                    compute_s=last,
                    overhead_s=overhead,
                    comm_s=comm,
                    variance=(noise * overhead) ** 2,
                )
            )
    return found


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "law",
    [Law(0.005, 0.05, 0.004, power=2.0), Law(0.004, 0.08, 0.004, behind=0.5), Law(0.002, 0.06, 0.0, power=5.0)],
)
def test_what_the_exchange_hides_is_found_and_predicts_other_passes_and_teams(law: Law, seed: int, told: bool) -> None:
    found = fit(measured(law, (4, 8), (0.04, 0.08, 0.16, 0.3), 0.02, seed, told))
    for workers, last in ((4, 0.06), (8, 0.12), (16, 0.1)):
        step = float(law.at(workers).step_seconds(last, 1))
        assert float(found.at(workers).step_seconds(last, 1)) == pytest.approx(step, rel=0.03)


@pytest.mark.parametrize("seed", range(5))
def test_where_nothing_hides_the_cost_is_the_same_for_every_plan(seed: int) -> None:
    found = fit(measured(Law(0.0, 0.03, 0.0), (4,), (0.05, 0.1, 0.2, 0.4), 0.05, seed))
    assert (found.power, found.behind) == (1.0, 0.0)
    cost = found.at(4)
    assert float(cost.overhead(0.01, 1)) == float(cost.overhead(9.0, 8)) == pytest.approx(0.03, rel=0.1)


def test_passes_of_like_length_tell_nothing_of_hiding() -> None:
    found = fit(measured(Law(0.0, 0.05, 0.0, power=3.0), (4, 8), (0.1, 0.11), 0.001))
    assert (found.power, found.behind) == (1.0, 0.0)


def test_only_the_last_of_several_passes_hides() -> None:
    cost = Communication(0.0, 0.1, behind=0.5)
    assert float(cost.overhead(0.2, 1)) == pytest.approx(0.0)
    assert float(cost.overhead(0.2, 4)) == pytest.approx(0.1 - 0.5 * 0.05)


def test_a_worker_alone_exchanges_nothing() -> None:
    found = fit(measured(Law(0.005, 0.03, 0.002), (1, 2, 4, 8), (0.1,), 0.01))
    assert found.at(1).exchange_s == 0.0
    assert float(found.at(1).overhead(0.1, 1)) == pytest.approx(0.005, rel=0.1)
    assert float(found.at(16).overhead(0.1, 1)) == pytest.approx(0.005 + 0.03 + 14 * 0.002, rel=0.1)


@given(laws, st.integers(1, 64), st.floats(0.001, 10), st.floats(0, 10), st.integers(1, 8))
def test_a_step_grows_with_its_computing_and_can_be_told_back(
    law: Law, workers: int, compute: float, more: float, accumulation: int
) -> None:
    cost = law.at(workers)
    one, other = (float(cost.step_seconds(c, accumulation)) for c in (compute, compute + more))
    assert compute <= one <= compute + cost.other_s + cost.exchange_s + 1e-12
    assert other >= one - 1e-12
    back = float(cost.compute_seconds(one, accumulation))
    assert float(cost.step_seconds(back, accumulation)) == pytest.approx(one, rel=1e-6)


@given(laws, st.integers(1, 64), st.floats(0.001, 10), st.integers(1, 8), st.floats(0, 2))
def test_moved_through_a_measurement_it_meets_it(
    law: Law, workers: int, compute: float, accumulation: int, overhead: float
) -> None:
    one = KeptExchange(workers=workers, global_batch=8, accumulation=accumulation, compute_s=compute,
                       overhead_s=overhead)  # fmt: skip
    moved = law.through(one)
    hides = moved.power != 1 or moved.behind != 0
    if not hides or overhead >= float(law.at(workers).overhead(compute, accumulation)):
        assert float(moved.at(workers).overhead(compute, accumulation)) == pytest.approx(overhead, abs=1e-9)
    assert moved.other_s >= 0 and moved.alpha_s >= 0


@given(st.lists(st.builds(
    KeptExchange, workers=st.integers(1, 64), global_batch=st.integers(1, 99), accumulation=st.integers(1, 4),
    compute_s=st.floats(1e-4, 100), overhead_s=st.floats(0, 100), variance=st.floats(0, 1),
    comm_s=st.none() | st.floats(0, 100)), max_size=12))  # fmt: skip
def test_any_measurements_give_a_finite_law(seen: list[KeptExchange]) -> None:
    law = fit(seen)
    assert all(math.isfinite(v) and v >= 0 for v in (law.other_s, law.alpha_s, law.beta_s))


def test_what_is_kept_is_bounded_and_the_newest() -> None:
    made = Exchanges()
    for batch in range(1, 3 * MAX_KEPT):
        made.put(KeptExchange(workers=2, global_batch=batch, accumulation=1, compute_s=0.1, overhead_s=0.01))
    kept = Exchanges(made.state()).state()
    assert len(kept) == MAX_KEPT and kept[-1].global_batch == 3 * MAX_KEPT - 1


@given(curves, st.integers(1, 4))
def test_a_plain_cost_predicts_what_seconds_do(curve: object, accumulation: int) -> None:
    models = [WorkerModel(f"w{i}", curve) for i in range(2)]  # type: ignore[arg-type]
    plans = [(16, accumulation), (64, accumulation)]
    steps = predict(models, 0.02, plans)
    assert predict(models, plain(0.02), plans) == pytest.approx(steps)
    assert computing(steps, plain(0.02), plans) == pytest.approx(steps - 0.02, abs=1e-12)


def test_past_step_times_are_carried_to_another_team_with_its_own_cost() -> None:
    from tests.planning.test_history import models

    history = History()
    history.put(64, 1, 0.2, 0.01, at=0.0)
    history.carry_over(models(2), models(2), plain(0.01), "", plain(0.03))
    before, after = (float(predict(models(2), cost, [(64, 1)])[0]) for cost in (0.01, 0.03))
    assert history.measured(0.0)[0].seconds == pytest.approx(0.2 * after / before)
