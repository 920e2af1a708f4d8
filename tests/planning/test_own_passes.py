"""Each worker takes its share in the number of passes that is fastest for it, and only the time changes by that."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rex_operator.planning import Planner
from rex_operator.planning.curves import Point, StepTimeCurve
from rex_operator.planning.prediction import in_own_passes, predict, samples_per_pass
from rex_operator.planning.split import Team, WorkerModel, split
from rex_operator.planning.types import CannotPlan, WorkerInfo
from tests.planning.simulated import Device, Job, spec
from tests.planning.test_split import teams

LARGE, SMALL = Device("large", 0.02, 0.0002, most=48), Device("small", 0.04, 0.0010, most=8)


def holding(models: list[WorkerModel]) -> list[WorkerModel]:
    """The models with a ceiling each, all of which is sure to fit."""
    return [replace(m, cap=m.cap or 9, fits=m.cap or 9) for m in models]


def fastest(model: WorkerModel, share: int, most: int) -> float:
    team = Team([model])
    fewest = math.ceil(share / (model.fits or 1))
    return min((float(team.times([share], p)[0]) for p in range(fewest, most + 1)), default=math.inf)


@given(teams(most=3), st.integers(1, 16), st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_no_shares_in_any_passes_finish_sooner(models: list[WorkerModel], batch: int, most: int) -> None:
    models = holding(models)
    choices = [range(1, min(batch, (m.cap or 1) * most) + 1) for m in models]
    best = min(
        (
            max(fastest(m, s, most) for m, s in zip(models, shares, strict=True))
            for shares in itertools.product(*choices)
            if sum(shares) == batch
        ),
        default=math.inf,
    )
    try:
        found = split(models, batch, most)
    except CannotPlan:
        assert math.isinf(best)
        return
    shares = np.array([found[m.worker_id] for m in models])
    passes = Team(models).passes(shares, most)
    assert shares.sum() == batch and (passes <= most).all()
    assert (np.ceil(shares / passes) <= [m.cap or 0 for m in models]).all()
    assert float(Team(models).times(shares, passes).max()) <= best * (1 + 1e-6)


@given(teams(most=4), st.lists(st.integers(160, 600), min_size=1, max_size=4, unique=True))
@settings(max_examples=40, deadline=None)
def test_what_is_predicted_is_what_the_split_takes(models: list[WorkerModel], sizes: list[int]) -> None:
    models = holding(models)
    plans = in_own_passes(models, sizes, 1)
    assert plans == sorted(plans) and {size for size, _ in plans} <= set(sizes)
    predicted, together = predict(models, 0.0, plans), samples_per_pass(models, plans, 1)
    team = Team(models)
    for (size, passes), seconds, samples in zip(plans, predicted, together, strict=True):
        most = team.most_passes(passes)
        shares = np.array(list(split(models, size, most).values()))
        slowest = team.best_times(shares, most).max()
        assert seconds <= slowest * 1.05 and slowest <= seconds * 1.7, "whole samples cost more than parts of them"
        assert samples <= sum(m.cap or 0 for m in models) * 1.05


def test_a_flat_curve_in_many_passes_does_not_hide_the_few() -> None:
    flat = StepTimeCurve.fit([Point(1, 0.998, 1e-6), Point(2, 1.002, 1e-6)])
    models = [WorkerModel("large", flat, cap=9, fits=9), WorkerModel("small", flat, cap=1, fits=1)]
    assert split(models, 160, 64)["large"] in (143, 144), "as many passes as the other one has samples"


def job(policy: str = "rex", *, equal_passes: bool = False, count: int = 2, batch: int = 0) -> Job:
    bounds = (batch, batch, batch) if batch else (64, 32, 512)
    planner = Planner(spec(*bounds, policy=policy), np.random.default_rng(0))
    planner.script_is(adaptive=False, equal_passes=equal_passes)
    return Job.of(planner, [LARGE, SMALL, LARGE][:count], noise_scale=lambda progress: 4000.0)


def test_a_worker_with_room_for_its_share_takes_it_in_fewer_passes() -> None:
    run = job()
    run.run(60)
    plan = run.plan
    assert plan is not None and plan.global_batch >= 128
    for worker, device in run.devices.items():
        assert plan.micro_batch(worker) <= (device.most or 0)
        assert plan.passes_of(worker) == math.ceil(plan.local_batches[worker] / (device.most or 1))
    assert plan.passes_of("w0") != plan.passes_of("w1")
    assert plan.accumulation == max(plan.passes_of(worker) for worker in run.devices)


def test_it_is_faster_than_equal_passes() -> None:
    own, equal = job(), job(equal_passes=True)
    for run in (own, equal):
        run.run(60)
    assert all(not draft.passes for draft in equal.drafts)
    assert own.progress > 1.1 * equal.progress


@pytest.mark.parametrize("policy", ["even", "lbb", "cannikin", "adaptdl"])
def test_published_rivals_keep_equal_passes(policy: str) -> None:
    run = job(policy)
    run.run(30)
    assert all(not draft.passes for draft in run.drafts)


def test_one_worker_keeps_the_passes_that_tell_its_noise_scale() -> None:
    run = job(count=1)
    run.run(30)
    assert all(not draft.passes for draft in run.drafts)


def test_a_worker_that_got_faster_takes_more_passes_without_a_trial() -> None:
    run = job(count=3, batch=128)
    run.run(10)
    before = run.plan
    assert before is not None
    run.slow = {"w0": 0.3}
    run.run(10)
    after = run.plan
    assert after is not None and "trial-started" not in run.kinds()
    assert after.local_batches["w0"] > before.local_batches["w0"]
    assert after.local_batches["w0"] > 48 and after.passes_of("w0") > 1, "more than it holds at once"


def test_that_all_must_take_equal_passes_outlives_the_operator() -> None:
    run = job(equal_passes=True)
    run.run(20)
    again = Planner(run.planner.spec, np.random.default_rng(1), run.planner.state())
    draft = again.set_workers([WorkerInfo(w, "b", d.kind, d.most) for w, d in run.devices.items()], 0.0)
    assert not draft.passes


@pytest.mark.parametrize("seed", range(2))
def test_c_171_a_memory_that_is_not_known_is_grown_into(seed: int) -> None:
    planner = Planner(spec(64, 32, 512), np.random.default_rng(seed))
    devices = (Device("large", 0.02, 0.0002), Device("small", 0.04, 0.0010))
    run = Job.of(planner, devices, seed, noise_scale=lambda progress: 4000.0, memory={"large": 60, "small": 20})
    run.run(60)
    plan = run.plan
    assert plan is not None and run.lost_steps <= 6
    assert all(plan.micro_batch(worker) <= run.memory[device.kind] for worker, device in run.devices.items())
    assert plan.global_batch >= 128 and plan.micro_batch("w0") >= 40
