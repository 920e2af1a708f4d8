"""What a failed trial has shown holds for the workers' speeds of then: others end the pause and ask the search anew."""

from __future__ import annotations

import numpy as np

from rex_operator.planning import Planner
from tests.planning.simulated import MIX, POLL_S, Job, spec


def settled() -> Job:
    """A job with two slow workers that would go on searching, but for a trial that failed: the pause is long."""
    planner = Planner(spec(64, 32, 1024, cooldown=600.0), np.random.default_rng(0))
    job = Job.of(planner, MIX, noise_scale=lambda samples: 250.0)
    job.slow |= {"w0": 2.0, "w1": 2.0}
    job.run(20)
    planner._trials.void()
    planner._cooldown.failed("larger", planner._elapsed)
    return job


def test_a_change_of_speed_ends_the_pause() -> None:
    job = settled()
    planner = job.planner
    job.run(10)
    searched = planner._seeking.number
    job.run(20)
    assert planner._seeking.number == searched, "it pauses"
    job.slow |= {"w0": 0.7, "w1": 0.7}
    job.run(20)
    assert planner._seeking.number > searched


def test_a_converged_job_is_asked_again_after_a_change_of_speed_but_tells_no_news() -> None:
    planner = Planner(spec(64, 32, 128), np.random.default_rng(0))
    job = Job.of(planner, MIX, noise_scale=lambda samples: 250.0)
    while not planner.converged:
        job.run(POLL_S)
    job.run(20)
    told, searched = job.kinds().count("converged"), planner._seeking.number
    job.slow |= {"w2": 1.5}
    job.run(20)
    assert planner._seeking.number > searched
    if planner._trials.count == 0:
        assert job.kinds().count("converged") == told


def test_noise_ends_no_pause() -> None:
    job = settled()
    planner = job.planner
    job.noise, job.correlation = 0.05, 0.6
    job.run(10)
    searched = planner._seeking.number
    job.run(60)
    assert planner._seeking.number == searched
