"""Memory ceilings are learned from what did not fit; the global batch is kept by more passes, or the reason is said."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rex_operator.planning import CannotPlan, PlanDraft, Planner, WorkerInfo
from rex_operator.planning.devices import Devices, Sighting
from tests.planning.simulated import MIX, Job, spec

WORKER = WorkerInfo("w0", "life", "t4")


def ran(devices: Devices, *sizes: int) -> None:
    for size in sizes:
        devices.learn([Sighting(WORKER, size, 0.01 * size, 1e-4)], at=0.0, moved=True)


def test_c_170_the_ceiling_lies_between_what_ran_and_what_did_not() -> None:
    devices = Devices()
    ran(devices, 2, 4, 8, 16, 32, 64)
    assert devices.ceiling(WORKER) is None
    devices.out_of_memory(WORKER, 128)
    ceiling = devices.ceiling(WORKER)
    assert ceiling is not None and 64 <= ceiling < 128


def test_c_171_a_size_that_ran_and_later_fails_gets_distance() -> None:
    devices = Devices()
    ran(devices, 32, 64, 100)
    devices.out_of_memory(WORKER, 100)
    assert devices.ceiling(WORKER) == 90


def test_a_given_ceiling_holds_beside_the_learned_one() -> None:
    devices = Devices()
    given = WorkerInfo("w1", "life", "t4", max_local_batch=50)
    assert devices.ceiling(given) == 50
    devices.out_of_memory(WORKER, 40)
    assert devices.ceiling(given) == 36


def planner(batch: int = 64, ceiling: int | None = None, high: int = 1024) -> tuple[Planner, PlanDraft]:
    made = Planner(spec(batch, 8, high), np.random.default_rng(0))
    return made, made.set_workers([WorkerInfo(f"w{i}", "life", "t4", ceiling) for i in range(2)], 0.0)


def test_c_119_running_out_of_memory_keeps_the_global_batch_by_more_passes() -> None:
    made, draft = planner(128)
    made.plan_running(1, 1, draft, 1, 0.0)
    after = made.out_of_memory("w0", 64, 1.0)
    assert after is not None
    assert after.global_batch == sum(after.local_batches.values()) == 128
    assert after.accumulation > 1
    assert max(after.local_batches.values()) / after.accumulation < 64
    assert after.learning_rate_factor == draft.learning_rate_factor
    assert made.decisions[-1].kind == "ceiling"
    assert "64 samples a pass do not fit" in made.decisions[-1].reason


def test_the_same_news_from_another_worker_changes_nothing_more() -> None:
    made, draft = planner(128)
    made.plan_running(1, 1, draft, 1, 0.0)
    assert made.out_of_memory("w0", 64, 1.0) is not None
    assert made.out_of_memory("w1", 64, 1.1) is None
    assert made.out_of_memory("nobody", 64, 1.1) is None


def test_c_169_when_not_even_one_sample_fits_it_is_said_plainly() -> None:
    made, draft = planner(128)
    for attempt in range(200):
        made.plan_running(attempt + 1, 1, draft, attempt + 1, float(attempt))
        micro = math.ceil(draft.local_batches["w0"] / draft.accumulation)
        after = made.out_of_memory("w0", micro, float(attempt))
        if after is None:
            break
        draft = after
    assert made.impossible is not None
    assert "not even one sample fits in the memory of w0" in made.impossible
    assert made.decisions[-1].kind == "ceiling" and made.decisions[-1].plan_to is None


def test_a_known_ceiling_shapes_the_first_plan() -> None:
    _, draft = planner(128, ceiling=20)
    assert draft.global_batch == 128
    assert max(draft.micro_batch(worker) for worker in draft.local_batches) <= 20


def test_a_team_too_large_for_the_batch_is_refused_with_the_reason() -> None:
    made = Planner(spec(2, 1, 4), np.random.default_rng(0))
    with pytest.raises(CannotPlan, match=r"batch.max \(4\) is too small for 5 workers"):
        made.set_workers([WorkerInfo(f"w{i}", "life", "t4") for i in range(5)], 0.0)


@pytest.mark.parametrize("seed", range(3))
def test_c_171_a_trial_that_runs_out_of_memory_is_vetoed_and_the_job_goes_on(seed: int) -> None:
    made = Planner(spec(), np.random.default_rng(seed))
    made.script_is(adaptive=False, equal_passes=True)  # own passes grow into the memory without a trial
    job = Job.of(made, MIX, seed=seed, noise_scale=lambda samples: 2000.0, memory={"a100": 50})
    job.run(60)
    stopped = [d for d in made.decisions if d.kind in ("vetoed", "ceiling")]
    assert stopped and "do not fit in the memory" in stopped[0].reason
    assert job.plan is not None
    for worker, device in job.devices.items():
        assert job.plan.micro_batch(worker) <= job.memory.get(device.kind, 10**9)
    assert len(stopped) <= 3, "the ceiling is learned, not tried again and again"


def test_c_171_where_the_bytes_lead_beyond_the_memory_no_trial_is_started() -> None:
    made = Planner(spec(), np.random.default_rng(0))
    job = Job.of(made, MIX, seed=0, noise_scale=lambda samples: 2000.0, bytes_per_sample={"a100": (2**30, 100)})
    job.run(60)
    assert "vetoed" not in job.kinds()
    assert "accepted" in job.kinds(), "what fits is still tried"
    assert largest(job, "a100") <= 95


class Swelling(Job):
    """A library takes a large workspace from 60 samples on."""

    def _peak(self, plan: PlanDraft, worker: str, share: int) -> int:
        return super()._peak(plan, worker, share) * (2 if plan.micro_batch(worker) >= 60 else 1)


def test_c_171_a_trial_that_leaves_hardly_any_memory_is_vetoed() -> None:
    made = Planner(spec(), np.random.default_rng(0))
    made.script_is(adaptive=False, equal_passes=True)
    job = Swelling.of(made, MIX, seed=0, noise_scale=lambda samples: 2000.0, bytes_per_sample={"a100": (2**30, 120)})
    job.run(60)
    vetoes = [d for d in made.decisions if d.kind == "vetoed"]
    assert vetoes and "of the memory of w0 (a100) free" in vetoes[0].reason
    assert largest(job, "a100") < 60
    assert len(vetoes) <= 3


def largest(job: Job, kind: str) -> int:
    """Return the largest micro-batch on devices of a kind."""
    assert job.plan is not None
    plan = job.plan
    return max(plan.micro_batch(worker) for worker, device in job.devices.items() if device.kind == kind)
