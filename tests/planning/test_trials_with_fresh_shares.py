"""Whoever runs in a trial runs with shares that fit the speeds of now: stale ones would lose whatever the batch is."""

from __future__ import annotations

import numpy as np
import pytest

from rex_operator.planning import Planner
from rex_operator.planning.trial import Trial
from rex_operator.planning.types import CandidateSummary
from tests.planning.simulated import MIX, POLL_S, Job, spec

SLOWER = {"w0": 3.0, "w1": 0.6}


def in_a_trial(seed: int) -> tuple[Job, Trial]:
    """A trial of a batch that is hardly better or worse, so that the incumbent will run again."""
    planner = Planner(spec(256, 32, 512, trials=0), np.random.default_rng(seed))
    job = Job.of(planner, MIX, seed=seed, noise=0.02, noise_scale=lambda samples: 500.0)
    job.run(20)
    window, plan, at = planner._known.ingest.window, job.plan, planner._elapsed
    assert window is not None and plan is not None
    draft = planner._drafting.exactly(280, 1, at)
    choice = CandidateSummary(global_batch=280, accumulation=1, expected_gain=0.02, ei=0.01)
    planner._trials.start(plan, draft, choice, window, at)
    planner._issued = draft
    job._take_up(draft)
    trial = planner._trials.running
    assert trial is not None
    job.run(1.0)
    return job, trial


def spread(job: Job) -> float:
    assert job.plan is not None
    plan = job.plan
    seconds = [job.compute_s(worker, plan) for worker in plan.local_batches]
    return max(seconds) / min(seconds)


@pytest.mark.parametrize("seed", range(2))
def test_the_incumbent_runs_again_with_shares_for_the_speeds_of_now(seed: int) -> None:
    job, trial = in_a_trial(seed)
    before = dict(trial.incumbent.local_batches)
    job.slow |= SLOWER
    while not trial.back and job.planner._trials.running is trial:
        job.run(POLL_S)
    assert trial.back, "the case that is meant"
    assert job.plan is not None and job.plan.global_batch == sum(before.values())
    assert job.plan.local_batches["w0"] < before["w0"] and job.plan.local_batches["w1"] > before["w1"]
    assert spread(job) < 1.3
    assert np.median(trial.reference) * trial.incumbent_useful == pytest.approx(job.step_s(job.plan), rel=0.1)


@pytest.mark.parametrize("seed", range(2))
def test_speeds_that_drift_in_a_trial_are_followed(seed: int) -> None:
    """By half a percent a step: no jump, but far off within the steps of a trial."""
    job, trial = in_a_trial(seed)
    begun, worst = job.step, 1.0
    while job.planner._trials.running is trial and not trial.back:
        job.slow |= {"w0": 1.0 + 0.005 * (job.step - begun)}
        job.advance()
        worst = max(worst, spread(job))
    assert job.step - begun >= 40
    assert worst < 1.5


def test_without_a_change_of_speed_the_incumbent_runs_again_as_it_was() -> None:
    job, trial = in_a_trial(0)
    before = trial.incumbent
    while not trial.back and job.planner._trials.running is trial:
        job.run(POLL_S)
    assert trial.back
    assert trial.incumbent == before and job.plan == before
