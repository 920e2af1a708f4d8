"""Plans that ran before workers changed their speeds are remembered as what they would take now."""

from __future__ import annotations

import numpy as np
import pytest

from rex_operator.planning import Planner, PlannerState, SearchRequest
from tests.planning.simulated import MIX, POLL_S, Job, spec


def trained() -> Job:
    """A job whose batch has grown, and whose workers then became two or three times as slow."""
    planner = Planner(spec(64, 32, 1024), np.random.default_rng(0))
    job = Job.of(planner, MIX, noise_scale=lambda samples: 3000.0)
    job.run(50)
    assert job.plan is not None and job.plan.global_batch >= 256
    job.slow |= {"w0": 3.0, "w1": 3.0, "w2": 2.0, "w3": 2.0}
    job.run(20)
    return job


def asked(job: Job) -> SearchRequest:
    """The next search that the job's planner asks for."""
    for _ in range(2000):
        job.one_step()
        if job.step % 10 == 0:
            answer = job.planner.poll(job.now)
            if isinstance(answer, SearchRequest):
                return answer
            if answer is not None:
                job._take_up(answer)
    pytest.fail("no search was asked for")


def test_smaller_batches_do_not_look_better_for_having_run_on_faster_workers() -> None:
    job = trained()
    request = asked(job)
    assert job.plan is not None
    old = {m.global_batch: m.seconds for m in request.measured if m.global_batch != job.plan.global_batch}
    assert 64 in old
    for batch, seconds in old.items():
        fitting = job.planner._drafting.exactly(batch, 1, job.planner._elapsed)
        assert seconds == pytest.approx(job.step_s(fitting), rel=0.25), batch


def test_an_operator_that_starts_anew_has_them_at_the_speeds_that_it_knows() -> None:
    job = trained()
    state = PlannerState.model_validate_json(job.planner.state().model_dump_json())
    seen = {m.global_batch: m.seconds for m in state.history}
    again = Planner(job.planner.spec, np.random.default_rng(1), state)
    again.set_workers(job.infos(), 5.0)
    assert {m.global_batch: m.seconds for m in again.state().history} == pytest.approx(seen)
    for batch, seconds in seen.items():
        fitting = job.planner._drafting.exactly(batch, 1, job.planner._elapsed)
        assert seconds == pytest.approx(job.step_s(fitting), rel=0.25), batch


def test_a_reference_is_carried_over_for_all_workers_that_changed() -> None:
    """Two of four jump in a trial: the step of the incumbent takes as long as the models say for both."""
    planner = Planner(spec(64, 32, 128), np.random.default_rng(0))
    job = Job.of(planner, MIX, noise=0.02, noise_scale=lambda samples: 5000.0)
    while planner._trials.running is None:
        job.run(POLL_S)
    trial = planner._trials.running
    job.run(0.5)
    before, took = float(np.median(trial.reference)), job.step_s(trial.incumbent)
    job.slow |= {"w0": 2.0, "w3": 3.0}
    for _ in range(20):
        job.run(POLL_S)
        if trial.translations:
            break
    assert trial.translations == 1
    assert np.median(trial.reference) / before == pytest.approx(job.step_s(trial.incumbent) / took, rel=0.1)
