"""Goodput, throughput, price and energy: one planner, four things that a plan may be good for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rex_operator.api.spec import Objective, RexJobSpec
from rex_operator.planning import CannotPlan, PlanDraft, Planner, WorkerInfo
from rex_operator.planning.curves import Point, StepTimeCurve
from rex_operator.planning.memory import Limits
from rex_operator.planning.objective import Bill, Meter, log_objective, rates, useful_samples
from rex_operator.planning.power import DevicePower, Draw, TeamPower
from rex_operator.planning.search import SearchRequest, run_search
from rex_operator.planning.split import WorkerModel
from rex_operator.planning.windows import GroupStep
from tests.planning.simulated import A100, T4, V100, Job, spec

PRICES = {"a100": 3.0, "v100": 1.2, "t4": 1.2}


def priced(objective: str, prices: dict[str, float] | None = None, *, workers_min: int = 1, **more: Any) -> RexJobSpec:
    plain = spec(objective="goodput", **more).model_dump(by_alias=True)
    plain["planner"]["objective"] = objective
    plain["workers"]["min"] = workers_min
    plain["pools"] = [
        {"name": kind, "maxWorkers": 64, "pricePerHour": price} for kind, price in (prices or PRICES).items()
    ]
    return RexJobSpec.model_validate(plain)


def ran(objective: str, seconds: float = 80.0, devices: tuple[Any, ...] = (A100, A100, V100, T4), **more: Any) -> Job:
    job = Job.of(Planner(priced(objective, **more), np.random.default_rng(3)), devices, seed=3)
    job.run(seconds)
    return job


@pytest.fixture(scope="module")
def by_price() -> Job:
    return ran("cost", workers_min=3)


def test_price_plans_batches_and_shares_as_goodput_does(by_price: Job) -> None:
    by_goodput = ran("goodput", workers_min=3)
    assert by_price.drafts == by_goodput.drafts
    told = [d for d in by_price.planner.decisions if d.kind != "advised"]
    assert told == list(by_goodput.planner.decisions)
    assert "advised" not in by_goodput.kinds()
    assert by_goodput.planner.view().advice is None


def test_price_tells_who_does_not_pay_and_leaves_the_plan_alone(by_price: Job) -> None:
    assert by_price.kinds().count("advised") == 1
    record = next(d for d in by_price.planner.decisions if d.kind == "advised")
    assert record.plan_to == record.plan_from
    assert "a useful sample costs" in record.reason
    assert "w3 (t4)" in record.reason
    assert "pools[t4].maxWorkers to 0" in record.reason
    assert record.reason == by_price.planner.view().advice


def test_another_team_is_another_question(by_price: Job) -> None:
    by_price.join({}, leave=["w3"])
    assert by_price.planner.view().advice is None
    by_price.run(20.0)
    assert by_price.planner.converged
    assert by_price.planner.view().advice is None, "fewer than three there may not be"


def test_the_teams_of_price_and_of_speed_differ() -> None:
    dear_and_fast = ran("cost", prices={"a100": 20.0, "v100": 1.0}, devices=(A100, V100), trials=0, seconds=20.0)
    advice = dear_and_fast.planner.view().advice
    assert advice is not None
    assert "pools[a100].maxWorkers to 0" in advice
    assert "longer" in advice
    assert dear_and_fast.planner.converged
    assert {draft.global_batch for draft in dear_and_fast.drafts} == {64}, "no trials: the batch is not touched"


def test_energy_waits_for_nobody_and_says_what_it_draws() -> None:
    job = ran("energy", workers_min=4)
    view = job.planner.view()
    assert view.watts is not None
    assert view.goodput is not None
    assert 0.15 * 1170 < view.watts < 1170, "between what they draw waiting and their limits"
    assert view.joules_per_sample == pytest.approx(view.watts / view.goodput)
    assert job.plan is not None
    busy = [job.compute_s(w, job.plan) for w, share in job.plan.local_batches.items() if share > 1]
    assert max(busy) < 1.3 * min(busy), "shares that finish together leave no device waiting at idle power"
    assert view.advice is None, "workers.min keeps all four"


def test_energy_never_settles_for_a_plan_that_draws_more_than_the_fastest() -> None:
    devices = (A100, V100)
    quick, thrifty = (ran(objective, devices=devices, workers_min=2) for objective in ("goodput", "energy"))
    drawn = [_joules_per_useful(thrifty, job.plan) for job in (quick, thrifty) if job.plan is not None]
    assert drawn[1] <= drawn[0] * 1.03


def test_the_search_for_energy_discounts_a_gain_by_what_it_draws() -> None:
    curve = StepTimeCurve.fit([Point(b, 0.02 + 0.001 * b, 1e-6) for b in (4.0, 16.0, 64.0, 256.0)])
    thirsty = DevicePower(idle=0.0, limit=300.0)
    plain = SearchRequest(
        number=1,
        models=(WorkerModel("w0", curve),),
        memory=(Limits(256.0),),
        overhead_s=0.0,
        batch_min=8,
        batch_max=256,
        batch_initial=32,
        current=(32, 1),
        noise_scale=None,
        measured=(),
        low=8,
        high=256,
        other_passes=True,
        min_effect=0.02,
    )
    faster, thriftier = (run_search(r) for r in (plain, replace(plain, powers=(thirsty,))))
    gains = [{(c.global_batch, c.accumulation): c.expected_gain for c in r.candidates} for r in (faster, thriftier)]
    both = [plan for plan in gains[0] if plan in gains[1] and plan[0] > 32 and plan[1] == 1]
    assert both
    for batch, _ in both:
        draw = Draw(thirsty, curve).watts([32.0, float(batch)])
        assert 1 + gains[1][batch, 1] == pytest.approx((1 + gains[0][batch, 1]) * draw[0] / draw[1], rel=0.01)


def _joules_per_useful(job: Job, plan: PlanDraft) -> float:
    known = job.planner._known
    meter = known.meter(0.0)
    assert meter.power is not None
    shares = [plan.local_batches[w.worker_id] for w in meter.workers]
    compute = np.array([job.compute_s(w.worker_id, plan) for w in meter.workers])
    drawn = meter.power.joules(meter.power.busy(shares, plan.accumulation), compute, job.step_s(plan))
    return float(drawn) / useful_samples("energy", plan.global_batch, job.noise_scale(job.samples), 64)


def test_an_unknown_device_is_an_error_that_says_what_to_set() -> None:
    planner = Planner(priced("energy"), np.random.default_rng(0))
    with pytest.raises(CannotPlan, match=r"what abacus of w0 draws; set power \(idleWatts, maxWatts\)"):
        planner.set_workers([WorkerInfo("w0", "life", "abacus")], 0.0)


@pytest.mark.parametrize("objective", ["goodput", "cost", "energy"])
def test_one_worker_alone_gets_a_plan_and_no_advice(objective: str) -> None:
    job = ran(objective, seconds=30.0, devices=(A100,))
    assert job.plan is not None
    assert job.planner.view().advice is None
    assert job.planner.view().price_per_hour == 3.0
    assert (job.planner.view().price_per_million or 0) > 0


@pytest.mark.parametrize(
    ("objective", "noise_scale", "expected"),
    [
        ("goodput", 300.0, 128 * 364 / 428),
        ("cost", 300.0, 128 * 364 / 428),
        ("energy", 300.0, 128 * 364 / 428),
        ("throughput", 300.0, 128.0),
        ("goodput", None, 128.0),
    ],
)
def test_useful_samples(objective: Objective, noise_scale: float | None, expected: float) -> None:
    assert useful_samples(objective, 128, noise_scale, 64) == pytest.approx(expected, rel=1e-15)


def test_a_bill_is_in_the_units_that_it_says() -> None:
    bill = Bill.of(price=7.2, watts=500.0, goodput=2000.0)
    assert bill.price_per_million == pytest.approx(7.2 / 3600 / 2000 * 1e6)
    assert bill.joules_per_sample == pytest.approx(0.25)
    assert Bill.of(0.0, None, 2000.0) == Bill(0.0, 0.0, None, None)
    assert Bill.of(None, 500.0, None) == Bill(None, None, 500.0, None)


def test_rates_come_from_the_workers_pool_then_from_its_kind_then_from_the_catalogue() -> None:
    plain = priced("goodput").model_dump(by_alias=True)
    plain["pools"] = [
        {"name": "spot", "nodeSelector": {"rex.dev/device": "t4"}, "pricePerHour": 0.2},
        {"name": "own", "nodeSelector": {"rex.dev/device": "t4"}, "power": {"idleWatts": 12, "maxWatts": 60}},
    ]
    job = RexJobSpec.model_validate(plain)
    own, stranger = rates(job, [WorkerInfo("w0", "life", "t4", pool="own"), WorkerInfo("w1", "life", "v100")])
    assert own.price_per_hour == 0.2
    assert own.power is not None
    assert own.power.limit == 60
    assert stranger.price_per_hour is None
    assert stranger.power is not None
    assert stranger.power.limit == 300


def test_without_known_power_energy_is_counted_as_time() -> None:
    meter = Meter("energy")
    assert meter.power is None
    assert meter.spent(PlanDraft(4, 1, {"w0": 4}, 1.0), []).size == 0
    assert TeamPower([], []).idle.size == 0


@given(st.integers(1, 2**20), st.floats(1e-3, 1e9), st.integers(1, 2**20), st.floats(1e-6, 1e4))
def test_goodput_is_what_it_was_to_the_last_bit(batch: int, noise_scale: float, initial: int, step_s: float) -> None:
    assert useful_samples("goodput", batch, noise_scale, initial) == batch * (
        (noise_scale + initial) / (noise_scale + batch)
    )
    nothing = np.zeros(1)
    step = GroupStep(
        1, 0, step_s, nothing, nothing, nothing, nothing, nothing, nothing, 0.0, None, diverged=False, counts=True
    )
    objectives: tuple[Objective, ...] = ("goodput", "throughput", "cost")
    for objective in objectives:
        assert Meter(objective).spent(PlanDraft(batch, 1, {"w0": batch}, 1.0), [step])[0] == step_s
    by_hand = np.log(float(batch)) - np.log((noise_scale + batch) / (noise_scale + initial)) - np.log(step_s)
    assert log_objective(np.array([float(batch)]), np.array([step_s]), noise_scale, initial)[0] == by_hand
