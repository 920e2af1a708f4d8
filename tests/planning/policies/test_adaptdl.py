"""AdaptDL's rule: the batch with the best predicted goodput, once per pass over the data, beyond 1.05; even shares."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rex_operator.planning import PlanDraft, Planner, WorkerInfo
from rex_operator.planning.cooldown import Cooldown
from rex_operator.planning.devices import Devices
from rex_operator.planning.noise import NoiseScale
from rex_operator.planning.policies.adaptdl import AdaptDL, Profile, candidates, goodput
from rex_operator.planning.policies.base import Scene
from rex_operator.planning.pollux_throughput import Throughput
from rex_operator.planning.windows import GroupStep
from tests.planning.simulated import MIX, T4, Job, spec

MODEL = Throughput(0.02, 0.001, 0.01, 0.001, 0.005, 0.0005, 2.0)
NONE = np.zeros(0)


def job(high: int = 4096, *, epoch: int = 20_000, workers: int = 4, **more: Any) -> Job:
    planner = Planner(spec(64, 32, high, policy="adaptdl"), np.random.default_rng(0))
    options: dict[str, Any] = {"noise": 0.03, "overhead_s": 0.012, "noise_scale": lambda samples: 2000.0, **more}
    return Job.of(planner, MIX[:workers], epoch=epoch, **options)


# --- the formulas -----------------------------------------------------------------------------------------------------


def test_goodput_is_throughput_times_efficiency() -> None:
    step = 0.02 + 0.001 * 100
    seconds = 2 * step + math.hypot(step, 0.01 + 0.001 * 2)
    expected = 4 * 100 * 3 / seconds * (500 + 64) / (500 + 1200)
    assert goodput(MODEL, 4, np.array([100.0]), np.array([3.0]), 500.0, 64)[0] == pytest.approx(expected, rel=1e-6)


def test_fifty_batches_from_the_initial_to_the_largest() -> None:
    micro, passes = candidates(64, 6400, 4, 400)
    batch = 4 * micro * passes
    assert batch.size == 50 and batch[0] == 64 and batch[-1] == 6400
    assert (np.diff(batch) >= 0).all()
    assert micro.max() <= 400 and (passes == np.ceil(batch / 4 / 400 - 1e-9)).all()
    ratio = batch[1:] / batch[:-1]
    assert np.allclose(ratio, 100 ** (1 / 49), atol=0.06)


def test_a_lone_replica_takes_two_passes_beyond_the_initial_batch() -> None:
    micro, passes = candidates(64, 256, 1, 1000)
    assert passes[0] == 1 and (passes[1:] == 2).all()
    assert (micro * passes <= 256).all()


def test_batches_that_no_memory_holds_are_not_considered() -> None:
    assert candidates(64, 32, 4, 8)[0].size == 0
    assert candidates(64, 256, 4, 3, least=4)[0].size == 0


# --- what is profiled -------------------------------------------------------------------------------------------------


def step(number: int, epoch: int = 0, compute: float = 0.2, step_s: float = 0.25) -> GroupStep:
    slower = np.array([compute / 2, compute])
    return GroupStep(number, number, step_s, slower, NONE, NONE, NONE, NONE, NONE, 0.0, None, False, True, epoch)


def scene(steps: list[GroupStep], accumulation: int = 1, batch: int = 64, **more: Any) -> Scene:
    plan = PlanDraft(batch, accumulation, {"w0": batch // 2, "w1": batch // 2}, 1.0)
    workers = tuple(WorkerInfo(name, "life", "any") for name in ("w0", "w1"))
    whole = Scene(spec(64, 32, 4096), workers, Devices(), Cooldown(60), 0.0, plan, ("w0", "w1"), steps)
    return replace(whole, **more)


def test_sums_hold_each_step_once_and_no_first_step_of_a_pass() -> None:
    profile = Profile()
    steps = [step(1), step(2), step(3, epoch=1, compute=9.0), step(4, epoch=1)]
    profile.take(scene(steps[:3]))
    profile.take(scene(steps))
    (only,) = profile.configurations()
    assert (only.nodes, only.replicas, only.micro_batch) == (2, 2, 32)
    assert only.accum_s == pytest.approx(0.2) and only.optim_s == pytest.approx(0.25)


def test_accumulation_tells_a_pass_from_the_one_that_exchanges() -> None:
    profile = Profile()
    profile.take(scene([step(1, compute=0.4, step_s=0.45)], accumulation=2))
    (only,) = profile.configurations()
    assert only.micro_batch == 16
    assert only.accum_s == pytest.approx(0.2) and only.optim_s == pytest.approx(0.25)


def test_what_was_measured_never_ages() -> None:
    profile = Profile()
    profile.take(scene([step(i) for i in range(30)]))
    profile.take(scene([step(i, compute=0.4, step_s=0.45) for i in range(30, 40)]))
    (only,) = profile.configurations()
    assert only.accum_s == pytest.approx((30 * 0.2 + 10 * 0.4) / 40)


def test_times_that_are_none_are_left_out() -> None:
    profile = Profile()
    profile.take(scene([step(1, compute=0.0), step(2, step_s=math.inf), step(3, compute=math.nan)]))
    assert profile.configurations() == []


# --- when it decides --------------------------------------------------------------------------------------------------

KNOWN = NoiseScale(5000.0, 4000.0, 6000.0)


def test_only_the_start_of_a_pass_changes_the_batch() -> None:
    policy, steps = AdaptDL(), [step(i) for i in range(40)]
    assert policy.adopt(scene(steps, noise=KNOWN)) is None
    found = policy.adopt(scene(steps, noise=KNOWN, epoch=1))
    assert found is not None and found.gain is not None and found.gain > 0.05
    assert policy.adopt(scene(steps, noise=KNOWN, epoch=1)) is None
    assert policy.adopt(scene(steps, noise=KNOWN, epoch=2)) is not None


def test_a_predicted_gain_of_up_to_5_percent_changes_nothing() -> None:
    policy, steps = AdaptDL(), [step(i) for i in range(40)]
    policy.adopt(scene(steps))
    assert policy.adopt(scene(steps, noise=NoiseScale(1.0, 0.5, 2.0), epoch=1)) is None


def test_without_a_noise_scale_the_batch_stays() -> None:
    policy, steps = AdaptDL(), [step(i) for i in range(40)]
    policy.adopt(scene(steps))
    assert policy.adopt(scene(steps, epoch=1)) is None


# --- in a job ---------------------------------------------------------------------------------------------------------


def test_the_batch_grows_with_the_noise_scale_and_shares_stay_equal() -> None:
    it = job(noise_scale=lambda samples: 100 + samples / 100)
    it.run(150)
    batches = [draft.global_batch for draft in it.drafts]
    assert batches == sorted(batches) and batches[-1] >= 3 * batches[0]
    assert all(max(d.local_batches.values()) - min(d.local_batches.values()) <= 1 for d in it.drafts)
    assert set(it.kinds()) <= {"membership", "adopted", "rescaled"}
    assert it.plan is not None
    best = max(it.goodput(PlanDraft(4 * n, 1, dict.fromkeys(it.devices, n), 1.0)) for n in range(16, 1025))
    assert it.goodput(it.plan) >= 0.93 * best


def test_the_batch_never_goes_below_the_first_one() -> None:
    it = job(noise_scale=lambda samples: 2.0)
    it.run(60)
    assert {draft.global_batch for draft in it.drafts} == {64}


def test_data_without_an_end_keep_their_batch() -> None:
    it = job(epoch=2**40)
    it.run(60)
    assert {draft.global_batch for draft in it.drafts} == {64}


def test_a_memory_ceiling_leads_to_more_passes() -> None:
    it = job(memory={"t4": 40}, noise_scale=lambda samples: 1e5)
    it.run(120)
    assert it.plan is not None and it.plan.global_batch > 200
    assert it.plan.accumulation > 1
    assert max(it.plan.local_batches.values()) <= 40 * it.plan.accumulation
    assert max(it.plan.local_batches.values()) - min(it.plan.local_batches.values()) <= 1


def test_one_worker_alone_goes_beyond_its_first_batch_in_two_passes_at_least() -> None:
    it = job(workers=1, epoch=2000)
    it.run(60)
    assert it.plan is not None
    assert it.plan.global_batch == 64 or it.plan.accumulation >= 2


def test_another_number_of_workers_is_planned_for_at_once() -> None:
    it = job(epoch=10**6)
    it.run(60)
    before = [d.kind for d in it.planner.decisions].count("adopted")
    it.join({f"new{i}": T4 for i in range(4)})
    it.run(8)
    assert [d.kind for d in it.planner.decisions].count("adopted") == before + 1
    assert it.samples < 10**6
