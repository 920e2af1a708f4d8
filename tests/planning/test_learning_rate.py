"""The learning rate follows the global batch from the initial one, never from what ran before (C-110)."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rex_operator.planning import Planner, PlannerState
from rex_operator.planning.learning_rate import Scaling, learning_rate_factor, noticeable, warmup_length
from tests.planning.simulated import MIX, Job, spec

RULES: tuple[Scaling, ...] = ("adascale", "linear", "sqrt", "legw", "none")
BATCHES = st.integers(1, 10**6)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_c_110_any_path_of_batches_ends_at_the_rate_of_its_end(rule: Scaling, adaptive: bool) -> None:
    path = [256, 512, 256, 1024, 256]
    factors = [learning_rate_factor(rule, batch, 256, 300.0, adaptive=adaptive) for batch in path]
    assert factors[0] == factors[2] == factors[4] == 1.0


ADASCALE = 4 * (300 + 64) / (300 + 256)


@pytest.mark.parametrize(
    ("rule", "adaptive", "factor"),
    [
        ("linear", False, 4.0),
        ("sqrt", False, 2.0),
        ("legw", False, 2.0),
        ("none", False, 1.0),
        ("adascale", False, ADASCALE),
        ("linear", True, 4.0),
        ("sqrt", True, 2.0),
        ("legw", True, 2.0),
        ("none", True, 1.0),
        ("adascale", True, math.sqrt(ADASCALE)),
    ],
)
def test_each_rule(rule: Scaling, adaptive: bool, factor: float) -> None:
    assert learning_rate_factor(rule, 256, 64, 300.0, adaptive=adaptive) == pytest.approx(factor)


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.integers(1, 4096), st.integers(1, 4096))
def test_adascale_is_the_gain_of_its_paper(trace: float, signal: float, batch: int, initial: int) -> None:
    """Johnson et al. 2020: (sigma^2 + mu^2) / (sigma^2 / S + mu^2), sigma^2 the variance at the initial batch."""
    variance, scale = trace / initial, batch / initial
    gain = (variance + signal) / (variance / scale + signal)
    assert learning_rate_factor("adascale", batch, initial, trace / signal) == pytest.approx(gain)


@given(BATCHES, BATCHES, st.floats(0, 1e9), st.booleans())
def test_adascale_lies_between_no_and_linear_scaling(
    batch: int, initial: int, noise_scale: float, adaptive: bool
) -> None:
    factor = learning_rate_factor("adascale", batch, initial, noise_scale, adaptive=adaptive)
    most = learning_rate_factor("sqrt" if adaptive else "linear", batch, initial, None)
    low, high = sorted((1.0, most))
    assert low * (1 - 1e-9) <= factor <= high * (1 + 1e-9)


def test_an_unknown_noise_scale_takes_the_cautious_end() -> None:
    assert learning_rate_factor("adascale", 256, 64, None) == 1.0
    assert learning_rate_factor("adascale", 32, 64, None) == 0.5


@given(st.sampled_from(RULES), st.integers(0, 10**12), BATCHES, BATCHES)
def test_only_legw_warms_up_longer_at_larger_batches(rule: Scaling, base: int, batch: int, initial: int) -> None:
    length = warmup_length(rule, base, batch, initial)
    assert length == pytest.approx(min(base * batch / initial, 2**53) if rule == "legw" else base, abs=0.5)


def noisy_job(saved: PlannerState | None = None, scaling: str = "adascale", initial: int = 64) -> Job:
    """Its batch is held away from the initial one, and nothing is tried."""
    planner = Planner(spec(initial, 32, 1024, scaling=scaling, trials=0), np.random.default_rng(1), saved)
    return Job.of(planner, MIX)


def at_batch(batch: int, **changes: object) -> PlannerState:
    return PlannerState.model_validate({"elapsed_s": 0.0, "global_batch": batch, "accumulation": 1, **changes})


def test_the_rate_follows_a_noise_scale_that_moves_and_says_why() -> None:
    job = noisy_job(at_batch(512))
    job.noise_scale = lambda progress: 30.0 if progress < 50_000 else 3000.0
    job.run(60)
    factors = [draft.learning_rate_factor for draft in job.drafts]
    assert factors[0] == 1.0, "unknown yet: the cautious end"
    assert factors[-1] == pytest.approx(8 * (3000 + 64) / (3000 + 512), rel=0.2)
    moves = [d for d in job.planner.decisions if d.kind == "rescaled"]
    assert moves and all(d.plan_to is not None and d.plan_to.global_batch == 512 for d in moves)
    assert "goes from x1 to x" in moves[0].reason and "the noise scale is" in moves[0].reason
    steps = [(a, b) for a, b in pairwise(factors) if a != b]
    assert all(noticeable(a, b) for a, b in steps), "no trembling"


def test_a_noise_scale_that_stands_still_moves_the_rate_hardly_ever() -> None:
    moved = 0
    for seed in range(5):
        job = noisy_job(at_batch(512))
        job.rng = np.random.default_rng(seed)
        job.run(120)
        assert job.step > 2000
        factors = [draft.learning_rate_factor for draft in job.drafts]
        moved += sum(a != b for a, b in pairwise(factors))
        assert factors[-1] == pytest.approx(8 * (300 + 64) / (300 + 512), rel=0.1)
    assert moved <= 3 * 5, "once when the noise scale becomes known, and then only as it becomes known better"


def test_c_110_a_planner_that_comes_back_issues_the_same_rate() -> None:
    job = noisy_job(at_batch(512))
    job.run(30)
    before = job.drafts[-1].learning_rate_factor
    assert before > 1.5
    again = noisy_job(PlannerState.model_validate_json(job.planner.state().model_dump_json()))
    assert again.drafts[-1].learning_rate_factor == before
    again.join({}, leave=["w3"])
    assert again.drafts[-1].learning_rate_factor == before, "another team is no reason for another rate"


def test_c_110_a_path_with_a_crash_at_each_point_ends_where_it_began() -> None:
    job = noisy_job(at_batch(512))
    job.run(30)
    learned = job.planner.state()
    path, factors = [64, 128, 64, 256, 64], []
    for batch in path:
        kept = learned.model_copy(update={"global_batch": batch}).model_dump_json()
        job = noisy_job(PlannerState.model_validate_json(kept))
        factors.append(job.drafts[-1].learning_rate_factor)
        learned = job.planner.state()
    assert factors == [learning_rate_factor("adascale", batch, 64, learned.rate_noise) for batch in path]
    assert factors[0] == factors[2] == factors[4] == 1.0 < factors[1] < factors[3]


def test_the_rate_holds_still_while_a_trial_is_judged() -> None:
    planner = Planner(spec(64, 32, 1024, cooldown=0.0), np.random.default_rng(1))
    job = Job.of(planner, MIX, noise_scale=lambda samples: 30.0 + samples / 200)
    job.run(120)
    kinds = job.kinds()
    assert kinds.count("trial-started") > 1 and "rescaled" in kinds
    for before, kind in pairwise(kinds):
        assert not (before == "trial-started" and kind == "rescaled")
    for draft in job.drafts:
        assert 1.0 <= draft.learning_rate_factor <= max(1.0, draft.global_batch / 64)


def test_an_adaptive_optimizer_gets_the_square_root_and_is_remembered() -> None:
    job = noisy_job(at_batch(32), scaling="adascale")
    plain = job.drafts[-1].learning_rate_factor
    assert plain == 0.5
    job.planner.script_is(adaptive=True)
    job.join({}, leave=["w3"])
    assert job.drafts[-1].learning_rate_factor == pytest.approx(math.sqrt(plain))
    again = noisy_job(job.planner.state(), scaling="adascale")
    assert again.drafts[-1].learning_rate_factor == pytest.approx(math.sqrt(plain))


def test_a_plan_says_what_its_rate_is_meant_for_and_how_it_warms_up() -> None:
    wish = spec(64, 32, 1024, scaling="sqrt").model_dump(by_alias=True)
    wish["learningRate"] = {"scaling": "legw", "warmupSamples": 1000}
    planner = Planner(type(spec()).model_validate(wish), np.random.default_rng(1), at_batch(256))
    draft = Job.of(planner, MIX).drafts[-1]
    assert (draft.learning_rate_factor, draft.warmup_samples, draft.initial_batch) == (2.0, 4000, 64)
