"""The ablation's arm raw-mwu judges once, by the raw rank test alone: no margin, no blocks, and doubt rolls back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rex_operator.api.spec import Validation
from rex_operator.planning import CandidateSummary, PlanDraft, Planner
from rex_operator.planning.policies.raw_mwu import RawMwu
from rex_operator.planning.trial import Look, Trial
from rex_operator.planning.windows import GroupStep
from tests.planning.simulated import DEMO, Job, spec

SPEC = Validation(min_steps=50)
NONE = np.zeros(1)


def steps(times: Sequence[float]) -> list[GroupStep]:
    return [
        GroupStep(i, i, t, NONE, NONE, NONE, NONE, NONE, NONE, 0.0, None, diverged=False, counts=True)
        for i, t in enumerate(times)
    ]


def trial(reference: Sequence[float]) -> Trial:
    old, new = (PlanDraft(batch, 1, {"w0": batch}, 1.0) for batch in (64, 90))
    choice = CandidateSummary(global_batch=90, accumulation=1, expected_gain=0.1, ei=0.1)
    return Trial(old, new, choice, np.array(reference), np.zeros(0), 1.0, SPEC)


def series(rng: np.random.Generator, size: int, level: float = 1.0, rho: float = 0.0) -> list[float]:
    noise = rng.normal(size=size) * np.sqrt(1 - rho * rho)
    for i in range(1, size):
        noise[i] += rho * noise[i - 1]
    return [float(t) for t in level * np.exp(0.005 * noise)]


def verdict(before: Sequence[float], after: Sequence[float]) -> str:
    on, policy, now = trial(before), RawMwu(), steps(after)
    look = policy.due(on, now)
    assert look is not None and look.final
    return policy.judge(on, look, now).verdict


def test_it_looks_once_when_min_steps_are_there() -> None:
    on, policy = trial([1.0] * 50), RawMwu()
    assert policy.due(on, steps([1.0] * 49)) is None
    assert policy.due(on, steps([1.0] * 50)) == Look(1, 0.025, final=True)


@pytest.mark.parametrize(("level", "expected"), [(0.99, "better"), (1.01, "worse")])
def test_a_difference_that_does_not_matter_decides(level: float, expected: str) -> None:
    rng = np.random.default_rng(0)
    assert verdict(series(rng, 50), series(rng, 50, level)) == expected


def test_on_independent_steps_it_errs_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    found = [verdict(series(rng, 50), series(rng, 50)) for _ in range(400)]
    assert 0.02 <= found.count("better") / 400 + found.count("worse") / 400 <= 0.09


def test_on_dependent_steps_it_errs_many_times_as_often() -> None:
    rng = np.random.default_rng(2)
    found = []
    for _ in range(200):
        whole = series(rng, 100, rho=0.8)
        found.append(verdict(whole[:50], whole[50:]))
    assert found.count("better") + found.count("worse") >= 0.3 * 200


def test_values_that_are_no_times_are_left_out() -> None:
    assert verdict([1.0, float("nan")] * 50, [0.5, 0.0] * 25) == "better"
    assert verdict([float("nan")] * 50, [1.0] * 50) == "open"


def test_in_a_job_a_trial_ends_with_its_first_look() -> None:
    planner = Planner(spec(64, 32, 1024, policy="raw-mwu"), np.random.default_rng(0))
    job = Job.of(planner, DEMO, noise_scale=lambda samples: 400.0, noise=0.03, overhead_s=0.012)
    job.run(60)
    judged = [d for d in planner.decisions if d.evidence is not None]
    assert judged
    for decision in judged:
        evidence = decision.evidence
        assert evidence is not None
        assert (evidence.look, evidence.block, evidence.n_trial) == (1, 1, 20)
        assert (decision.kind == "accepted") == (evidence.p_better < 0.025)
