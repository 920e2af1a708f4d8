"""Joules scatter and drift as times do: on A/A telemetry they, too, change a plan in at most alpha of the trials."""

from __future__ import annotations

import numpy as np
import pytest

from rex_operator.api.spec import Validation
from rex_operator.planning import CandidateSummary, PlanDraft, WorkerInfo
from rex_operator.planning.curves import Point, StepTimeCurve
from rex_operator.planning.objective import Meter
from rex_operator.planning.power import DevicePower, TeamPower
from rex_operator.planning.split import WorkerModel
from rex_operator.planning.trial import Trial, steps_needed
from rex_operator.planning.windows import GroupStep
from tests.planning.test_nothing_without_evidence import verdict_of

PLAN = PlanDraft(96, 1, {"w0": 64, "w1": 32}, 1.0)
CHOICE = CandidateSummary(global_batch=96, accumulation=1, expected_gain=0.0, ei=0.0)
CURVE = StepTimeCurve.fit([Point(b, 0.01 + 0.001 * b) for b in (8.0, 32.0, 128.0)])
MODELS, POWERS = [WorkerModel("w0", CURVE), WorkerModel("w1", CURVE)], [DevicePower(60, 400), DevicePower(10, 70)]
METER = Meter("energy", (WorkerInfo("w0", "a", "a100"), WorkerInfo("w1", "b", "t4")), TeamPower(MODELS, POWERS))
TRIALS, LENGTH, BEFORE = 120, 1600, 300


def ar1(rng: np.random.Generator, rho: float) -> np.ndarray:
    noise: np.ndarray = rng.normal(size=LENGTH) * np.sqrt(1 - rho * rho)
    for i in range(1, LENGTH):
        noise[i] += rho * noise[i - 1]
    return noise


def steps(rng: np.random.Generator, rho: float) -> list[GroupStep]:
    compute = 0.05 * np.exp(0.04 * np.stack([ar1(rng, rho), ar1(rng, rho)], axis=1))
    took = compute.max(axis=1) + 0.005
    nothing = np.zeros(2)
    return [
        GroupStep(i, 0, float(t), c, t - c, nothing, nothing, nothing, nothing, 0.0, None, False, True)
        for i, (t, c) in enumerate(zip(took, compute, strict=True))
    ]


def verdict(seen: list[GroupStep], spec: Validation, saved: float = 0.0) -> str:
    """Run one trial on the steps, its plan drawing so much less."""
    costs = METER.spent(PLAN, seen)
    keep = 2 * steps_needed(spec, costs[:BEFORE])
    useful = 1.0 / (1 - saved)
    trial = Trial(PLAN, PLAN, CHOICE, costs[BEFORE - keep : BEFORE], np.zeros(0), useful, spec, METER)
    return verdict_of(trial, BEFORE, lambda begin: seen[begin : begin + spec.max_steps])


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_an_equal_plan_is_not_kept_for_its_joules(rho: float) -> None:
    rng = np.random.default_rng(5)
    spec = Validation(min_effect=0.0)
    verdicts = [verdict(steps(rng, rho), spec) for _ in range(TRIALS)]
    assert verdicts.count("better") / TRIALS <= 0.05


def test_a_plan_that_draws_a_tenth_less_is_kept() -> None:
    rng = np.random.default_rng(6)
    verdicts = [verdict(steps(rng, 0.3), Validation(), saved=0.1) for _ in range(20)]
    assert verdicts.count("better") >= 19


def test_the_meter_knows_workers_by_name_whatever_their_order() -> None:
    seen = steps(np.random.default_rng(7), 0.0)[:5]
    swapped = Meter("energy", METER.workers[::-1], TeamPower(MODELS[::-1], POWERS[::-1]))
    assert swapped.spent(PLAN, seen) == pytest.approx(METER.spent(PLAN, seen))
