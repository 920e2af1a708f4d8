"""A larger batch stays only if it is shown to help; otherwise the incumbent comes back, and all is on record."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from rex_operator.planning import DecisionRecord, Planner, SearchRequest, run_search
from tests.planning.simulated import DEMO, MIX, POLL_S, Device, Job, spec


def digits(samples: int) -> float:
    """A noise scale that grows as training goes on, as in public traces."""
    return 100 + 900 * min(1.0, samples / 200_000)


def demo(seed: int, noise_scale: float | None = None, **more: object) -> Job:
    planner = Planner(spec(64, 32, 1024), np.random.default_rng(seed))
    scale = digits if noise_scale is None else (lambda samples: noise_scale)
    return Job.of(planner, DEMO, seed=seed, noise_scale=scale, correlation=0.3, overhead_s=0.012, epoch=1437, **more)


@pytest.mark.parametrize("seed", range(3))
def test_two_minutes_of_a_small_job_show_all_that_the_planner_does(seed: int) -> None:
    job = demo(seed, noise=0.05)
    job.run(120)
    kinds = job.kinds()
    assert kinds[:2] == ["membership", "rebalanced"]
    assert kinds.count("accepted") >= 1
    assert kinds.count("rejected") + kinds.count("inconclusive") >= 1
    for decision in job.planner.decisions:
        if decision.kind in ("accepted", "rejected", "inconclusive"):
            assert decision.evidence is not None
            assert min(decision.evidence.n_reference, decision.evidence.n_trial) >= 20
            assert decision.expectation is not None
            assert decision.plan_from is not None and decision.plan_to is not None


@pytest.mark.parametrize("seed", range(3))
def test_it_ends_near_the_best_batch(seed: int) -> None:
    job = demo(seed, noise_scale=400.0, noise=0.03)
    job.run(120)
    assert job.plan is not None
    reached = job.goodput(job.plan)
    scene = job.planner._scene(job.planner._elapsed)
    best = 0.0
    for batch in range(32, 1025, 32):
        shares = job.planner._policy.shares(scene, batch, 1)
        draft = type(job.plan)(batch, 1, shares, 1.0)
        best = max(best, job.goodput(draft))
    assert reached >= 0.95 * best
    assert reached >= 1.2 * job.goodput(job.drafts[0])


@pytest.mark.parametrize("seed", range(3))
def test_where_the_first_batch_is_best_none_is_accepted(seed: int) -> None:
    planner = Planner(spec(256, 32, 4096), np.random.default_rng(seed))
    job = Job.of(planner, MIX, seed=seed, noise_scale=lambda samples: 80.0, noise=0.02, overhead_s=0.012)
    job.run(120)
    for decision in planner.decisions:
        if decision.kind == "accepted":
            assert decision.plan_to is not None
            assert decision.evidence is not None and decision.evidence.effect >= 0.02
    assert job.plan is not None and job.plan.global_batch <= 256


def first(job: Job, *kinds: str, seconds: float = 120.0) -> DecisionRecord:
    end = job.now + seconds
    while job.now < end:
        job.run(POLL_S)
        for decision in job.planner.decisions:
            if decision.kind in kinds:
                return decision
    raise AssertionError(f"no {kinds} within {seconds} s: {job.kinds()}")


class Cliff(Device):
    """Beyond 16 samples another kernel is taken, and nobody could know."""

    def seconds(self, samples: float) -> float:
        return super().seconds(samples) * (3.0 if samples > 16 else 1.0)


def test_a_trial_that_is_not_kept_restores_batch_and_learning_rate() -> None:
    planner = Planner(spec(64, 32, 4096), np.random.default_rng(0))
    job = Job.of(planner, [Cliff("odd", 0.02, 0.0005)] * 4, noise_scale=lambda samples: 2000.0)
    rejected = first(job, "rejected", "inconclusive")
    started = [d for d in planner.decisions if d.kind == "trial-started"][-1]
    assert started.plan_from is not None and rejected.plan_to is not None
    assert rejected.plan_to.global_batch == started.plan_from.global_batch
    assert rejected.plan_to.accumulation == started.plan_from.accumulation
    assert rejected.plan_to.learning_rate_factor == pytest.approx(started.plan_from.learning_rate_factor, rel=0.2)


def test_a_diverging_loss_vetoes_at_once() -> None:
    planner = Planner(spec(), np.random.default_rng(0))
    job = Job.of(planner, MIX, loss=lambda samples, batch: math.nan if batch > 64 else 1.0)
    veto = first(job, "vetoed")
    assert "diverged" in veto.reason
    assert job.plan is not None and job.plan.global_batch == 64
    assert veto.step - next(d.step for d in planner.decisions if d.kind == "trial-started") <= 40


def test_a_clearly_worse_loss_vetoes_though_it_is_faster() -> None:
    planner = Planner(spec(), np.random.default_rng(0))
    job = Job.of(planner, MIX, loss=lambda samples, batch: 3.0 if batch > 64 else 1.0)
    veto = first(job, "vetoed")
    assert "The loss rose by" in veto.reason
    assert "accepted" not in job.kinds()


def test_a_failed_direction_is_left_alone_for_longer_and_longer() -> None:
    planner = Planner(spec(cooldown=10.0), np.random.default_rng(0))
    job = Job.of(planner, MIX, loss=lambda samples, batch: 3.0 if batch > 64 else 1.0)
    job.run(300)
    starts = [
        d.time_s
        for d in planner.decisions
        if d.kind == "trial-started" and d.plan_to is not None and d.plan_to.global_batch > 64
    ]
    pauses = np.diff(starts)
    assert len(starts) >= 3
    assert (pauses[1:] >= 1.5 * pauses[:-1]).all()


def test_max_trials_is_respected() -> None:
    planner = Planner(spec(trials=2, cooldown=0.0), np.random.default_rng(0))
    job = Job.of(planner, MIX, noise_scale=digits)
    job.run(120)
    assert job.kinds().count("trial-started") == 2
    assert planner.converged
    assert any("All 2 trials are used" in decision.reason for decision in planner.decisions)


def test_c_161_min_equal_to_max_has_nothing_to_search() -> None:
    planner = Planner(spec(256, 256, 256), np.random.default_rng(0))
    job = Job.of(planner, MIX)
    job.run(60)
    assert planner.converged
    assert planner.decisions[-1].reason.startswith("Nothing to search")
    assert {draft.global_batch for draft in job.drafts} == {256}


def test_c_138_nothing_is_decided_on_stale_data() -> None:
    planner = Planner(spec(), np.random.default_rng(0))
    job = Job.of(planner, MIX)
    for _ in range(40):
        job.one_step()
    assert planner.poll(job.now + 300) is None, "though these steps show that the shares are wrong"
    assert all(worker.stale for worker in planner.view().workers.values())
    job.now += 300
    job.one_step()
    answer = planner.poll(job.now)
    assert answer is not None and not isinstance(answer, SearchRequest)
    assert planner.decisions[-1].kind == "rebalanced"
    assert not any(worker.stale for worker in planner.view().workers.values())


def test_an_answer_that_comes_too_late_changes_nothing() -> None:
    planner = Planner(spec(), np.random.default_rng(0))
    job = Job.of(planner, MIX)
    request = None
    while request is None:
        job.one_step()
        answer = planner.poll(job.now)
        if isinstance(answer, SearchRequest):
            request = answer
        elif answer is not None:
            job._take_up(answer)
    result = run_search(request)
    job.join({}, leave=("w0",))
    assert planner.complete(request, result, job.now) is None
    assert "trial-started" not in job.kinds()


def slow_in_a_trial(times: int) -> Job:
    """A job with a long trial, in which one worker changes its speed so many times."""
    planner = Planner(spec(validation={"minSteps": 200, "warmupSteps": 5}), np.random.default_rng(0))
    job = Job.of(planner, MIX, noise=0.01)
    first(job, "trial-started")
    job.run(4)
    assert planner.view().trial is not None
    for i in range(times):
        job.slow["w0"] = 1.0 if i % 2 else 2.5
        job.run(3)
    return job


def test_c_140_a_trial_outlives_a_worker_that_becomes_slow() -> None:
    job = slow_in_a_trial(1)
    decision = next(d for d in job.planner.decisions if "became" in d.reason)
    assert decision.kind == "rebalanced"
    assert decision.reason.startswith("In the trial: w0 (a100) became")
    assert decision.plan_from is not None and decision.plan_to is not None
    assert decision.plan_to.global_batch == decision.plan_from.global_batch, "the batch stays on trial"
    assert decision.plan_to.local_batches["w0"] < decision.plan_from.local_batches["w0"]
    assert job.planner.view().trials == 1


def test_a_trial_with_too_many_changes_of_speed_is_void() -> None:
    job = slow_in_a_trial(5)
    decision = next(d for d in job.planner.decisions if "during a trial" in d.reason)
    assert decision.kind == "rebalanced" and decision.plan_to is not None
    assert decision.plan_to.global_batch == 64
    assert not any(d.kind in ("rejected", "inconclusive") for d in job.planner.decisions), "it tells nothing"


@pytest.mark.parametrize("seed", range(3))
def test_a_slower_worker_does_not_pass_for_a_worse_batch(seed: int) -> None:
    """The reference is carried over: what the whole team lost is not held against the plan on trial."""
    planner = Planner(spec(64, 32, 128), np.random.default_rng(seed))
    job = Job.of(planner, MIX, seed=seed, noise=0.02, noise_scale=lambda samples: 5000.0)
    first(job, "trial-started")
    job.run(0.3)
    job.slow["w0"] = 2.0
    job.run(60)
    assert not any(d.kind == "rejected" and d.plan_from and d.plan_from.global_batch == 128 for d in planner.decisions)
    assert job.plan is not None and job.plan.global_batch > 64


def test_a_batch_larger_than_an_epoch_is_given_up() -> None:
    planner = Planner(spec(64, 32, 1024), np.random.default_rng(0))
    job = Job.of(planner, MIX, noise_scale=lambda samples: 5000.0, epoch=100)
    job.run(120)
    assert any("Hardly any step of an epoch is full" in d.reason for d in planner.decisions)
    assert job.plan is not None and job.plan.global_batch <= 100


def test_every_record_is_json_without_nan() -> None:
    job = demo(0)
    job.run(90)
    for decision in job.planner.decisions:
        json.loads(decision.model_dump_json(), parse_constant=lambda name: pytest.fail(name))


def test_throughput_as_the_objective_needs_no_noise_scale() -> None:
    planner = Planner(spec(64, 32, 2048, objective="throughput"), np.random.default_rng(0))
    job = Job.of(planner, MIX, noise_scale=lambda samples: 1.0)
    job.run(120)
    assert job.plan is not None and job.plan.global_batch >= 512


@pytest.mark.parametrize(("rule", "most"), [("none", 1.0), ("linear", 64.0), ("adascale", 64.0)])
def test_the_learning_rate_goes_with_each_plan(rule: str, most: float) -> None:
    planner = Planner(spec(scaling=rule), np.random.default_rng(0))
    job = Job.of(planner, MIX, noise_scale=digits)
    job.run(60)
    assert "accepted" in job.kinds()
    for draft in job.drafts:
        scale = draft.global_batch / 64
        assert min(1.0, scale) * 0.999 <= draft.learning_rate_factor <= min(most, max(1.0, scale)) * 1.001
        if rule == "linear":
            assert draft.learning_rate_factor == pytest.approx(scale)
        if draft.global_batch == 64:
            assert draft.learning_rate_factor == 1.0
