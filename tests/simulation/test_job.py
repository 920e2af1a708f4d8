"""A simulated job is the same under the same seed, gets where it is to get, and no plan in it breaks a promise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rex_operator.planning import PlanDraft, Planner
from rex_operator.planning.policies import POLICIES
from rex_operator.simulation import promises, scenario
from rex_operator.simulation.devices import Bent, Device
from rex_operator.simulation.job import Job
from rex_operator.simulation.run import Result, run
from rex_operator.simulation.scenario import Event, Scenario
from tests.planning.simulated import DEMO, MIX, spec
from tests.simulation.workloads import work

WORK = work(steps=400)
SCENARIOS = {
    s.name: s
    for s in (
        scenario.static(),
        scenario.straggler(WORK.devices),
        scenario.changing(WORK.devices),
        scenario.joins_and_leaves(WORK.devices),
    )
}
EVERYTHING = Scenario(
    "everything", tuple(sorted((e for s in SCENARIOS.values() for e in s.events), key=lambda event: event.at))
)


def simulate(policy: str, happens: Scenario, seed: int = 0) -> tuple[Job, Result]:
    job = WORK.job(policy, seed)
    return job, run(job, happens, WORK.course.target, 1e6)


@pytest.mark.parametrize("policy", ["rex", "even"])
def test_the_same_seed_gives_the_same_job_and_another_seed_another(policy: str) -> None:
    first, again, other = (simulate(policy, SCENARIOS["changing"], seed)[1] for seed in (1, 1, 2))
    assert first == again
    assert first.seconds != other.seconds


@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_policy_gets_as_far_whatever_happens_and_breaks_no_promise(policy: str) -> None:
    short = work(steps=250)
    job = short.job(policy, 0)
    result = run(job, EVERYTHING, short.course.target, 1e6)
    assert result.reached
    assert short.course.target <= result.progress <= short.course.target + short.largest
    assert result.decisions["membership"] == 5
    assert result.evidence_bytes > 0 and result.samples == job.samples


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_no_batch_of_rex_stays_without_evidence(name: str) -> None:
    """The batch changes by trials, their acceptance or roll-back, or for lack of room: nothing else (I6)."""
    job, _ = simulate("rex", SCENARIOS[name], seed=3)
    records = [r for r in job.planner.decisions if r.plan_from is not None and r.plan_to is not None]
    for record in records:
        assert record.plan_from is not None and record.plan_to is not None
        if record.kind in ("rebalanced", "rescaled", "converged"):
            moved = record.plan_to.global_batch != record.plan_from.global_batch
            assert not moved or "voids" in record.reason or "trial" in record.reason.lower()
        if record.kind == "accepted":
            assert record.evidence is not None and record.evidence.p_better < record.evidence.alpha


events = st.lists(
    st.one_of(
        st.builds(Event, st.floats(0, 1), slow=st.dictionaries(st.integers(0, 2), st.floats(0.3, 6), max_size=3)),
        st.builds(Event, st.floats(0, 1), leave=st.just((2,)), join=st.just({2: WORK.devices[0]})),
    ),
    max_size=5,
)


@given(events, st.sampled_from(["rex", "even"]), st.integers(0, 2**16))
@settings(max_examples=6, deadline=None)
def test_promises_hold_along_any_course_of_events(happens: list[Event], policy: str, seed: int) -> None:
    ordered = Scenario("any", tuple(sorted(happens, key=lambda event: event.at)))
    _, result = simulate(policy, ordered, seed)
    assert result.reached


def test_a_plan_that_breaks_a_promise_stops_the_simulation() -> None:
    job = Job.of(Planner(spec(), np.random.default_rng(0)), MIX)
    assert job.plan is not None
    bounds, free = job.planner.spec.batch, dict.fromkeys(job.devices)
    promises.check(job.plan, bounds, free)
    for wrong, says in (
        (replace(job.plan, global_batch=65), "sum to 64, not to 65"),
        (replace(job.plan, local_batches={"w0": 64}), "the group is"),
        (replace(job.plan, local_batches={**job.plan.local_batches, "w0": 0, "w1": 32}), "0 samples, below 1 in each"),
        (replace(job.plan, global_batch=16, local_batches=dict.fromkeys(free, 4)), "outside 32..1024"),
    ):
        with pytest.raises(promises.BrokenPromise, match=says):
            promises.check(wrong, bounds, free)
    with pytest.raises(promises.BrokenPromise, match="w0 gets 16 in 1 passes and holds 15"):
        promises.check(job.plan, bounds, {**free, "w0": 15})


def test_promises_hold_for_each_worker_in_its_own_passes() -> None:
    bounds = spec(min_share=3).batch
    plan = PlanDraft(64, 4, {"w0": 50, "w1": 14}, 1.0, passes={"w1": 2})
    promises.check(plan, bounds, {"w0": 13, "w1": 7})
    for most, says in (
        ({"w0": 12, "w1": 7}, "w0 gets 50 in 4 passes and holds 12"),
        ({"w0": 13, "w1": 6}, "w1 gets 14 in 2 passes and holds 6"),
    ):
        with pytest.raises(promises.BrokenPromise, match=says):
            promises.check(plan, bounds, most)
    for passes, says in (
        ({"w1": 4}, "4 passes of w1: not of this group, or not 1 to 3"),
        ({"w9": 1}, "1 passes of w9"),
        ({}, "w1 gets 14 samples, below 4 in each of 4 passes"),
    ):
        with pytest.raises(promises.BrokenPromise, match=says):
            promises.check(
                replace(plan, passes=passes), spec(min_share=4 if not passes else 3).batch, {"w0": 50, "w1": 14}
            )


def test_an_epoch_is_used_to_its_last_sample_and_its_last_step_is_short() -> None:
    job = Job.of(Planner(spec(64, policy="even"), np.random.default_rng(0)), MIX, epoch=200)
    seen = []
    for _ in range(8):
        before = job.samples
        job.one_step()
        seen.append(job.samples - before)
    assert seen == [64, 64, 64, 8] * 2
    assert job.planner.view().set_aside["marked or short"] == 2 * len(MIX)


def test_a_step_takes_as_long_as_the_slowest_worker_and_what_comes_after() -> None:
    job = Job.of(Planner(spec(64, policy="even"), np.random.default_rng(0)), MIX, noise=0.0, overhead_s=0.0)
    job.slow["w3"] = 2.0
    before = job.now
    job.one_step()
    assert job.now - before == pytest.approx(2 * MIX[3].seconds(16))


def test_a_step_that_runs_out_of_memory_costs_its_time_and_trains_nothing() -> None:
    job = Job.of(Planner(spec(64, policy="even"), np.random.default_rng(0)), MIX, memory={"t4": 10})
    before = job.now
    job.one_step()
    assert job.samples == 0 and job.lost_steps == 1 and job.now > before
    while job.samples == 0:
        job.one_step()
    assert job.plan is not None and math.ceil(job.plan.local_batches["w3"] / job.plan.accumulation) <= 10
    assert job.step == 1 and job.samples == 64 and job.progress == pytest.approx(64)


def with_passes(shares: dict[str, int], accumulation: int, passes: dict[str, int], **more: Any) -> Job:
    """A job that has taken up a plan whose workers have their own passes."""
    batch = sum(shares.values())
    job = Job.of(Planner(spec(batch, policy="even"), np.random.default_rng(0)), MIX[: len(shares)], noise=0.0, **more)
    job._take_up(PlanDraft(batch, accumulation, shares, 1.0, passes=passes))
    return job


@dataclass(frozen=True)
class Slowest:
    """Communication that takes as long as the largest micro-batch has samples."""

    def seconds(self, micro_batches: Iterable[tuple[Device, float]]) -> float:
        return max(size for _, size in micro_batches)


def test_each_worker_takes_as_long_as_its_own_passes() -> None:
    shares = {"w0": 40, "w1": 24}
    job = with_passes(shares, 4, {"w1": 1}, communication=Slowest(), overhead_s=0.5)
    assert job.plan is not None
    assert job.compute_s("w0", job.plan) == pytest.approx(4 * MIX[0].seconds(10))
    assert job.compute_s("w1", job.plan) == pytest.approx(MIX[1].seconds(24))
    assert job.step_s(job.plan) == pytest.approx(4 * MIX[0].seconds(10) + 0.5 + 24), "of the largest micro-batch"


def test_a_worker_with_few_samples_in_a_short_step_runs_no_empty_pass() -> None:
    job = with_passes({"w0": 48, "w1": 16}, 4, {}, epoch=72, overhead_s=0.0)
    job.one_step()
    before = job.now
    job.one_step()
    assert job.samples == 72
    assert job.now - before == pytest.approx(max(4 * MIX[0].seconds(1.5), 2 * MIX[1].seconds(1)))


def test_memory_is_that_of_each_workers_largest_pass() -> None:
    shares = {"w0": 40, "w1": 24}
    fits = with_passes(shares, 4, {"w1": 1}, memory={"a100": 24}, bytes_per_sample={"a100": (2400, 24)})
    fits.one_step()
    assert fits.lost_steps == 0 and fits.step == 1
    assert fits.plan is not None
    assert [fits._peak(fits.plan, w, share) for w, share in shares.items()] == [1000, 2400]
    full = with_passes(shares, 4, {"w1": 1}, memory={"a100": 23})
    full.one_step()
    assert full.lost_steps == 1 and full.step == 0


def test_a_larger_batch_than_the_base_is_worth_less_than_its_samples() -> None:
    job = Job.of(Planner(spec(512, 32, 512, policy="even"), np.random.default_rng(0)), MIX, base_batch=32)
    job.one_step()
    assert job.samples == 512
    assert job.progress == pytest.approx(512 * (300 + 32) / (300 + 512))


def test_a_change_of_the_group_costs_its_seconds() -> None:
    job = Job.of(Planner(spec(policy="even"), np.random.default_rng(0)), MIX, regroup_s=3.0)
    assert job.now == 1000.0, "the first group forms before the clock starts"
    job.join({"w9": DEMO[0]}, leave=("w0",))
    assert job.now == 1003.0 and job.generation == 2


def test_disturbances_have_the_spread_and_correlation_asked_for() -> None:
    job = Job.of(Planner(spec(policy="even"), np.random.default_rng(0)), MIX[:2], noise=0.05, correlation=0.6)
    logs = np.log([job._disturb(["w0", "w1"]) for _ in range(8000)])
    assert logs.std(axis=0) == pytest.approx([0.05, 0.05], rel=0.1)
    for series in logs.T:
        assert np.corrcoef(series[:-1], series[1:])[0, 1] == pytest.approx(0.6, abs=0.05)
    assert abs(np.corrcoef(logs.T)[0, 1]) < 0.05


def test_omnilearns_schedule_keeps_the_cores_and_the_straggler_is_the_fastest_device() -> None:
    assert all(sum(cores) == 48 for cores in scenario.HL.values())
    devices = [Bent("slow", 0.1, 0.01), Bent("fast", 0.1, 0.001)]
    assert [dict(event.slow) for event in scenario.straggler(devices).events] == [{1: 2.0}, {1: 1.0}]
    ats = [event.at for event in scenario.changing(devices).events]
    assert ats[0] == 0.0 and all(a < b for a, b in pairwise(ats))
