"""The search proposes what is likely to be better, within reach of what ran, and stops when nothing is."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from rex_operator.planning import SearchRequest, run_search
from rex_operator.planning.curves import Point, StepTimeCurve
from rex_operator.planning.memory import Limits
from rex_operator.planning.objective import log_objective
from rex_operator.planning.prediction import predict
from rex_operator.planning.search import Measured, candidates
from rex_operator.planning.split import WorkerModel, split
from rex_operator.planning.types import CannotPlan

FAST = StepTimeCurve.fit([Point(x, 0.005 + 0.0002 * x) for x in (4, 16, 64)])
SLOW = StepTimeCurve.fit([Point(x, 0.020 + 0.0011 * x) for x in (4, 16, 64)])
TEAM = (WorkerModel("a", FAST), WorkerModel("b", FAST), WorkerModel("c", SLOW))


def request(**changes: object) -> SearchRequest:
    measured = (Measured(64, 1, float(predict(TEAM, 0.005, [(64, 1)])[0]), 1e-5),)
    base = SearchRequest(
        number=7,
        models=TEAM,
        memory=(Limits(64.0), Limits(64.0), Limits(64.0)),
        overhead_s=0.005,
        batch_min=8,
        batch_max=8192,
        batch_initial=64,
        current=(64, 1),
        noise_scale=500.0,
        measured=measured,
        low=1,
        high=8192,
        other_passes=True,
        min_effect=0.02,
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def test_it_proposes_a_larger_batch_where_that_is_better_and_says_what_it_expects() -> None:
    result = run_search(request())
    assert result.number == 7
    assert result.choice is not None and result.choice.global_batch > 64
    assert result.choice.expected_gain > 0.02
    assert len(result.candidates) <= 8
    assert result.candidates[0] == result.choice
    assert list(result.candidates) == sorted(result.candidates, key=lambda c: -c.ei)


def test_it_proposes_a_smaller_batch_where_samples_are_wasted() -> None:
    seconds = float(predict(TEAM, 0.005, [(512, 1)])[0])
    wasteful = request(current=(512, 1), noise_scale=20.0, measured=(Measured(512, 1, seconds, 1e-5),))
    choice = run_search(wasteful).choice
    assert choice is not None and choice.global_batch < 512


def test_c_161_one_point_is_nothing_to_search() -> None:
    result = run_search(request(batch_min=64, batch_max=64))
    assert result.choice is None and result.reason.startswith("Nothing to search")


def test_c_161_two_neighbouring_integers_are_searched_without_harm() -> None:
    narrow = request(batch_min=64, batch_max=65)
    assert {batch for batch, _ in candidates(narrow)} <= {64, 65}
    assert run_search(narrow).choice is None


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_c_162_flat_or_single_observations_work(count: int) -> None:
    flat = tuple(Measured(64 * (i + 1), 1, 0.01 * (i + 1), 1e-12) for i in range(count))
    linear = StepTimeCurve.fit([Point(1, 0.001), Point(100, 0.1)])
    result = run_search(
        request(measured=flat, models=(WorkerModel("a", linear),), memory=(Limits(100.0),), overhead_s=0.0)
    )
    for candidate in result.candidates:
        json.loads(candidate.model_dump_json(), parse_constant=lambda name: pytest.fail(name))


def test_c_162_the_same_plan_measured_twice_is_no_trouble() -> None:
    twice = request().measured * 2
    assert run_search(request(measured=twice)).choice is not None


def test_numbers_are_plain_integers() -> None:
    choice = run_search(request()).choice
    assert choice is not None
    assert type(choice.global_batch) is int and type(choice.accumulation) is int


def test_c_167_the_next_proposal_is_at_most_twice_the_largest_that_ran() -> None:
    public = [(32, 0.172), (45, 0.227), (64, 0.206), (91, 0.201), (129, 0.188)]
    curve = StepTimeCurve.fit([Point(x, t) for x, t in public])
    measured = tuple(Measured(x, 1, t, 1e-4) for x, t in public)
    result = run_search(
        request(
            models=(WorkerModel("a", curve),),
            memory=(Limits(129.0),),
            measured=measured,
            current=(129, 1),
            batch_max=4096,
            noise_scale=None,
        )
    )
    assert result.choice is not None
    assert result.choice.global_batch <= 258


def test_a_closed_direction_is_not_proposed() -> None:
    result = run_search(request(high=64))
    assert all(c.global_batch <= 64 for c in result.candidates)
    assert all(c.global_batch != 64 for c in run_search(request(other_passes=False)).candidates)


def test_a_measured_disappointment_is_not_proposed_again() -> None:
    first = run_search(request()).choice
    assert first is not None
    plan = (first.global_batch, first.accumulation)
    worse = Measured(*plan, 1.6 * float(predict(TEAM, 0.005, [plan])[0]), 1e-5)
    again = run_search(request(measured=(*request().measured, worse)))
    assert again.choice is None or (again.choice.global_batch, again.choice.accumulation) != plan


def test_what_does_not_fit_in_memory_is_no_candidate() -> None:
    tight = tuple(dataclasses.replace(m, cap=30) for m in TEAM)
    result = run_search(request(models=tight, memory=(Limits(30.0), Limits(30.0), Limits(30.0))))
    assert all(c.global_batch <= 90 * c.accumulation for c in result.candidates)


def test_unproven_memory_makes_a_candidate_less_attractive() -> None:
    sure, unsure = run_search(request()), run_search(request(memory=(Limits(20.0), Limits(20.0), Limits(10.0))))
    assert sure.choice is not None and unsure.choice is not None
    assert unsure.choice.ei < sure.choice.ei


def test_predicted_step_times_are_those_of_the_best_split() -> None:
    plans = [(24, 1), (64, 1), (500, 1), (500, 2), (64, 4)]
    for plan, seconds in zip(plans, predict(TEAM, 0.005, plans), strict=True):
        shares = split(TEAM, *plan)
        curves = {m.worker_id: m.curve for m in TEAM}
        exact = max(float(curves[w].time(s / plan[1])) * plan[1] for w, s in shares.items()) + 0.005
        assert seconds == pytest.approx(exact, rel=0.06)


def test_a_plan_that_cannot_be_split_has_no_prediction() -> None:
    tight = tuple(dataclasses.replace(m, cap=10) for m in TEAM)
    with pytest.raises(CannotPlan):
        split(tight, 64)
    assert np.isnan(predict(tight, 0.0, [(64, 1)])[0])


def test_the_objective_is_goodput_up_to_a_constant() -> None:
    batches, seconds = np.array([64.0, 128.0]), np.array([0.1, 0.15])
    value = log_objective(batches, seconds, 300.0, 64)
    expected = (128 / 0.15 * (364 / 428)) / (64 / 0.1)
    assert float(np.exp(value[1] - value[0])) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(4))
def test_c_164_a_small_space_is_searched_in_few_trials_and_then_left_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def measure(plan: tuple[int, int]) -> Measured:
        seconds = float(predict(TEAM, 0.005, [plan])[0]) * float(np.exp(0.05 * rng.normal()))
        return Measured(*plan, seconds, 1e-5)

    current, seen = (64, 1), [measure((64, 1))]
    for _ in range(9):
        result = run_search(request(batch_min=64, batch_max=512, current=current, measured=tuple(seen)))
        if result.choice is None:
            break
        plan = (result.choice.global_batch, result.choice.accumulation)
        assert plan not in {(m.global_batch, m.accumulation) for m in seen}
        seen.append(measure(plan))
        value = [log_objective(np.array([float(m.global_batch)]), np.array([m.seconds]), 500.0, 64)[0] for m in seen]
        best = seen[int(np.argmax(value))]
        current = (best.global_batch, best.accumulation)
    assert len(seen) <= 9
