"""A trial is worth it only for what can still be won: less what it costs, over the rest of the job."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from rex_operator.planning import Planner, run_search
from rex_operator.planning.surrogate import Belief
from rex_operator.planning.worth import Stakes, worth
from tests.planning.simulated import MIX, POLL_S, Job, spec
from tests.planning.test_search import request


def belief(*gains: float, deviation: float = 0.02) -> Belief:
    means = np.array([gains])
    return Belief(np.ones(1), means, np.full_like(means, deviation), np.diag(np.full(len(gains), deviation**2)))


def stakes(remaining: int | None = None, step_s: float = 0.1) -> Stakes:
    return Stakes.of(steps=50, step_s=np.array([step_s]), own_s=0.1, batch=64, remaining=remaining)


def test_c_160_a_tiny_gain_does_not_pay_for_its_trial() -> None:
    sure, margin = np.ones(1), math.log1p(0.02)
    assert worth(stakes(), belief(0.002, deviation=0.001), sure, margin)[0] < 0
    assert worth(stakes(), belief(0.10), sure, margin)[0] > 0


def test_near_the_end_of_a_job_no_trial_starts_that_cannot_pay_back() -> None:
    plenty, little = run_search(request(remaining_samples=10**9)), run_search(request(remaining_samples=64 * 40))
    assert plenty.choice is not None
    assert little.choice is None
    assert "of the job are left, too few for a trial of" in little.reason


def test_a_job_that_is_over_is_left_alone() -> None:
    assert run_search(request(remaining_samples=0)).choice is None


def test_the_same_promise_is_worth_less_the_longer_its_trial_takes() -> None:
    short, long = (worth(stakes(100_000, s), belief(0.05), np.ones(1), 0.0)[0] for s in (0.1, 0.4))
    assert short > long


def test_what_may_not_fit_in_memory_is_worth_less() -> None:
    values = [worth(stakes(), belief(0.05), np.array([fit]), 0.0)[0] for fit in (1.0, 0.5, 0.0)]
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0


def test_chances_of_neighbours_neither_add_up_nor_multiply() -> None:
    alike, margin = np.full((8, 8), 0.02**2), 0.02
    means = np.zeros((1, 8))
    one = Belief(np.ones(1), means, np.full((1, 8), 0.02), alike)
    single = float(one.chance(margin)[0])
    assert one.chance_of_any(margin, np.ones(8, dtype=bool)) == pytest.approx(single, abs=0.04)
    apart = dataclasses.replace(one, covariance=np.diag(np.diag(alike)))
    assert apart.chance_of_any(margin, np.ones(8, dtype=bool)) == pytest.approx(1 - (1 - single) ** 8, abs=0.06)


def test_an_end_of_the_search_says_how_likely_something_better_is() -> None:
    result = run_search(request(batch_min=64, batch_max=65))
    assert result.choice is None
    assert "the chance that any batch is better by 2.0% is" in result.reason
    assert all(0 <= c.chance <= 1 and c.trial_s > 0 for c in result.candidates)


@pytest.mark.parametrize(("total", "tries"), [(0, True), (64 * 150, False)])
def test_a_planner_that_is_told_the_length_of_the_run_tries_nothing_at_its_end(total: int, tries: bool) -> None:
    planner = Planner(spec(64, 32, 1024), np.random.default_rng(0))
    planner.length_is(total)
    job = Job.of(planner, MIX, noise_scale=lambda samples: 2000.0)
    while job.step < 150:
        job.run(POLL_S)
    assert ("trial-started" in job.kinds()) == tries
