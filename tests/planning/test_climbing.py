"""A trial climbs where its first steps are far better; the verdict is on the last rung, or all of it is undone."""

from __future__ import annotations

import numpy as np
import pytest

from rex_operator.planning import DecisionRecord, Planner
from tests.planning.simulated import A100, MIX, T4, V100, Device, Job, spec

IDLE = tuple(Device(d.kind, 5 * d.fixed, d.each / 20) for d in (A100, A100, V100, T4))
"""Devices that a small batch leaves idle: time hardly grows with it."""


class Cliff(Device):
    """Above so many samples a pass takes five times as long."""

    above = 40

    def seconds(self, samples: float) -> float:
        return super().seconds(samples) * (5 if samples > self.above else 1)


def job(devices: tuple[Device, ...] = IDLE, seed: int = 0, high: int = 8192, noise_scale: float = 20_000.0) -> Job:
    planner = Planner(spec(64, 32, high), np.random.default_rng(seed))
    return Job.of(planner, devices, seed=seed, noise_scale=lambda samples: noise_scale, noise=0.03, correlation=0.3)


def of_kind(job: Job, *kinds: str) -> list[DecisionRecord]:
    return [d for d in job.planner.decisions if d.kind in kinds]


@pytest.mark.parametrize("seed", range(3))
def test_a_far_larger_batch_takes_one_verdict(seed: int) -> None:
    run = job(seed=seed)
    run.run(60)
    climbed, accepted = of_kind(run, "climbed"), of_kind(run, "accepted")
    assert len(climbed) >= 3
    first = accepted[0]
    assert first.plan_from is not None and first.plan_to is not None and first.evidence is not None
    assert first.plan_from.global_batch == 64, "judged against the plan that the climb began from"
    assert first.plan_to.global_batch >= 512
    assert min(first.evidence.n_reference, first.evidence.n_trial) >= 20


@pytest.mark.parametrize("seed", range(3))
def test_c_167_no_rung_is_beyond_twice_what_ran(seed: int) -> None:
    run = job(seed=seed)
    run.run(60)
    ran = 64
    for draft in run.drafts:
        assert draft.global_batch <= 2 * ran
        ran = max(ran, draft.global_batch)


def test_where_small_gains_are_all_there_is_none_climbs() -> None:
    run = job(MIX, noise_scale=60.0)
    run.run(60)
    assert not of_kind(run, "climbed")


@pytest.mark.parametrize("seed", range(3))
def test_c_171_a_climb_beyond_the_memory_goes_on_a_rung_lower(seed: int) -> None:
    run = job(seed=seed)
    run.planner.script_is(adaptive=False, equal_passes=True)  # own passes do not go where memory is not sure
    run.memory = {"a100": 150}
    run.run(60)
    kinds = run.kinds()
    after = [d for d in run.planner.decisions if d.kind == "ceiling"]
    assert after and after[0].reason.startswith("In the trial: ") and "do not fit in the memory" in after[0].reason
    assert after[0].plan_from is not None and after[0].plan_to is not None
    assert 64 < after[0].plan_to.global_batch < after[0].plan_from.global_batch, "not back to where it began"
    assert "climbed" not in kinds[kinds.index("ceiling") : kinds.index("accepted")]
    assert run.drafts[-1].micro_batch("w0") <= 150


@pytest.mark.parametrize("seed", range(3))
def test_a_climb_that_ends_badly_is_undone_as_a_whole(seed: int) -> None:
    """The rungs look ever better, up to one at which the devices fall off a cliff."""
    run = job(tuple(Cliff(d.kind, d.fixed, d.each) for d in IDLE), seed=seed)
    run.run(60)
    while run.planner.view().trial is not None and run.step < 2000:
        run.advance()
    decisions = list(run.planner.decisions)
    for i, decision in enumerate(decisions):
        if decision.kind in ("rejected", "inconclusive"):
            assert decision.plan_to is not None
            started = next(d for d in reversed(decisions[:i]) if d.kind == "trial-started")
            assert started.plan_from is not None
            assert decision.plan_to.global_batch == started.plan_from.global_batch
    assert run.plan is not None and run.goodput(run.plan) >= run.goodput(run.drafts[0])
