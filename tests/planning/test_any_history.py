"""Whatever happens and whatever is reported, each plan keeps its sums and bounds (promise 7) and nothing crashes."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rex_operator.planning import CannotPlan, PlanDraft, Planner, PlannerState, SearchRequest, WorkerInfo, run_search
from rex_worker.protocol import StepReport
from tests.planning.simulated import A100, T4, V100, Device, Job, spec

KINDS = (A100, V100, T4, Device("odd", 0.0, 0.003))

events = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.integers(1, 60)),
        st.tuples(st.just("join"), st.integers(0, 3)),
        st.tuples(st.just("leave"), st.integers(0, 9)),
        st.tuples(st.just("slow"), st.integers(0, 9)),
        st.tuples(st.just("memory"), st.integers(4, 64)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    min_size=1,
    max_size=12,
)


class Checked(Job):
    def _take_up(self, draft: PlanDraft) -> None:
        super()._take_up(draft)
        bounds, workers = self.planner.spec.batch, len(self.devices)
        assert max(bounds.min, workers) <= draft.global_batch <= bounds.max
        assert draft.learning_rate_factor > 0


@given(events, st.integers(0, 2**16))
@settings(max_examples=12, deadline=None)
def test_random_histories(history: list[tuple[str, int]], seed: int) -> None:
    job = Checked(Planner(spec(64, 16, 1024), np.random.default_rng(seed)), {}, np.random.default_rng(seed))
    job.join({"w0": A100, "w1": T4})
    names = 2
    for event, value in history:
        workers = list(job.devices)
        match event:
            case "run":
                job.run(value / 6)
            case "join":
                job.join({f"w{names}": KINDS[value]})
                names += 1
            case "leave" if len(workers) > 1:
                job.join({}, leave=(workers[value % len(workers)],))
            case "slow":
                job.slow[workers[value % len(workers)]] = 0.5 + value / 3
            case "memory":
                job.memory[job.devices[workers[0]].kind] = value
            case "restart":
                state = PlannerState.model_validate_json(job.planner.state().model_dump_json())
                job.planner = Planner(job.planner.spec, np.random.default_rng(1), state)
                job.join({})
    for decision in job.planner.decisions:
        json.loads(decision.model_dump_json(), parse_constant=lambda name: pytest.fail(name))


seconds = st.one_of(st.just(0.0), st.floats(0, 1e7), st.floats(0.001, 0.2))


@given(st.lists(st.tuples(seconds, seconds, st.one_of(st.none(), st.floats(-1e30, 1e30))), min_size=60, max_size=90))
@example(rows=[(0.0, 1e-313, None)] * 60)
@settings(max_examples=20, deadline=None)
def test_c_135_absurd_reports_lead_to_no_crash_and_no_nan(rows: list[tuple[float, float, float | None]]) -> None:
    planner = Planner(spec(validation={"minSteps": 4, "warmupSteps": 0}, cooldown=0.0), np.random.default_rng(0))
    draft = planner.set_workers([WorkerInfo(f"w{i}", "life", "any") for i in range(2)], 0.0)
    version = 1
    planner.plan_running(version, 1, draft, 1, 0.0)
    for step, (compute, whole, loss) in enumerate(rows, 1):
        now = float(step)
        for i in range(2):
            report = StepReport(
                step=step,
                plan_version=version,
                samples=64 * step,
                local_batch=draft.local_batches[f"w{i}"],
                compute_s=compute,
                wait_s=0.0,
                step_s=whole,
                loss=loss,
                local_grad_sq=abs(loss or 1.0),
                global_grad_sq=1.0,
            )
            planner.observe(f"w{i}", "life", 1, report, now)
        answer = planner.poll(now)
        if isinstance(answer, SearchRequest):
            answer = planner.complete(answer, run_search(answer), now)
        if answer is not None:
            draft, version = answer, version + 1
            assert sum(draft.local_batches.values()) == draft.global_batch
            planner.plan_running(version, 1, draft, step + 1, now)
    view = planner.view()
    for value in (view.throughput, view.goodput, view.noise_scale, view.step_s, view.loss):
        assert value is None or math.isfinite(value)
    json.loads(planner.state().model_dump_json(), parse_constant=lambda name: pytest.fail(name))


def test_a_refused_team_leaves_the_planner_usable() -> None:
    planner = Planner(spec(4, 1, 4), np.random.default_rng(0))
    with pytest.raises(CannotPlan):
        planner.set_workers([WorkerInfo(f"w{i}", "life", "any") for i in range(5)], 0.0)
    draft = planner.set_workers([WorkerInfo(f"w{i}", "life", "any") for i in range(3)], 1.0)
    assert draft.global_batch == 4
