"""A restarted operator goes on from what was learned; a half-done trial starts over; the state is bounded JSON."""

from __future__ import annotations

import numpy as np
import pytest

from rex_operator.planning import Planner, PlannerState, WorkerInfo
from tests.planning.simulated import MIX, Job, spec


def reborn(job: Job, seconds_away: float = 5.0) -> Job:
    """The operator is killed and comes back with a clock of its own; the workers go on under their plan."""
    state = PlannerState.model_validate_json(job.planner.state().model_dump_json())
    planner = Planner(job.planner.spec, np.random.default_rng(9), state)
    running, generation = job.plan, job.generation
    assert running is not None
    job.planner, job.now = planner, 17.0
    planner.set_workers(job.infos(), job.now)
    planner.plan_running(job.version, generation, running, job.step + 1, job.now)
    return job


def learned(seed: int = 0) -> Job:
    job = Job.of(Planner(spec(), np.random.default_rng(seed)), MIX, seed=seed, noise_scale=lambda samples: 400.0)
    job.run(60)
    assert "accepted" in job.kinds()
    return job


def test_batch_noise_and_curves_survive() -> None:
    job = learned()
    before = job.planner.view()
    plan = job.plan
    job = reborn(job)
    assert plan is not None
    assert job.planner.view().noise_scale == before.noise_scale
    assert job.planner.view().trials == before.trials
    fresh = Planner(job.planner.spec, np.random.default_rng(0), job.planner.state())
    draft = fresh.set_workers(job.infos(), 0.0)
    assert draft.global_batch == plan.global_batch
    for worker, share in draft.local_batches.items():
        assert share == pytest.approx(plan.local_batches[worker], abs=2, rel=0.1)


def test_it_goes_on_deciding_after_the_restart() -> None:
    job = reborn(learned())
    job.slow["w1"] = 2.5
    job.run(60)
    assert any(d.kind == "rebalanced" and d.reason.startswith("w1 (a100)") for d in job.planner.decisions)


def test_job_time_goes_on_though_clocks_start_anew() -> None:
    job = learned()
    last = job.planner.decisions[-1].time_s
    job = reborn(job)
    job.run(30)
    times = [d.time_s for d in job.planner.decisions]
    assert times == sorted(times)
    assert times[-1] >= last


def test_a_trial_that_nobody_judged_starts_over() -> None:
    planner = Planner(spec(validation={"minSteps": 100, "warmupSteps": 5}), np.random.default_rng(0))
    job = Job.of(planner, MIX, noise_scale=lambda samples: 400.0)
    while job.planner.view().trial is None:
        job.run(1.0)
        assert job.now < 1200
    assert job.plan is not None and job.plan.global_batch > 64
    trials = planner.view().trials
    job = reborn(job)
    job.run(2.0)
    assert job.plan is not None and job.plan.global_batch == 64
    assert job.planner.view().trials == trials - 1
    assert "was cut off" in job.planner.decisions[-1].reason
    job.run(60)
    assert "accepted" in job.kinds()


def test_the_state_is_bounded() -> None:
    planner = Planner(spec(2**16, 1, 2**20), np.random.default_rng(0))
    rng = np.random.default_rng(0)
    infos = [WorkerInfo("w" * 50 + str(i), f"{i:064d}", f"kind-{i % 40}") for i in range(1024)]
    for now in range(100):
        planner.set_workers(infos, float(now))
        planner.out_of_memory(infos[int(rng.integers(1024))].worker_id, int(rng.integers(200, 10_000)), float(now))
    assert len(planner.state().model_dump_json()) < 900_000
    assert len(planner.decisions) <= 64
