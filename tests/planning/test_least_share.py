"""No plan gives a worker fewer samples in a pass than ``batch.minShare``, which batch normalisation may ask for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rex_operator.planning import CannotPlan, PlanDraft, Planner, PlannerState, WorkerInfo
from rex_operator.planning.curves import Point, StepTimeCurve
from rex_operator.planning.devices import Devices
from rex_operator.planning.memory import Limits
from rex_operator.planning.prediction import predict
from rex_operator.planning.search import SearchRequest, candidates, run_search
from rex_operator.planning.split import WorkerModel, even_split, split
from tests.planning.simulated import A100, MIX, T4, V100, Device, Job, spec

LEAST = 4
SLUG = Device("slug", 0.05, 0.05)
"""So slow that without a minimum it would get a single sample."""

curves = st.lists(st.tuples(st.integers(1, 60), st.floats(0.01, 5)), min_size=1, max_size=4).map(
    lambda rows: StepTimeCurve.fit([Point(x, t) for x, t in rows])
)
teams = st.lists(
    st.tuples(curves, st.floats(0.1, 10), st.one_of(st.none(), st.integers(1, 40))), min_size=1, max_size=9
).map(lambda rows: [WorkerModel(f"w{i}", *row) for i, row in enumerate(rows)])


@given(teams, st.integers(1, 3000), st.integers(1, 6), st.integers(2, 12))
@settings(deadline=None)
def test_c_118_every_share_is_large_enough_or_the_reason_is_said(
    models: list[WorkerModel], batch: int, accumulation: int, least: int
) -> None:
    caps = {m.worker_id: m.cap for m in models}
    room = sum(cap * accumulation if cap else batch for cap in caps.values())
    too_small = any(cap is not None and cap < least for cap in caps.values())
    if too_small or not least * accumulation * len(models) <= batch <= room:
        with pytest.raises(CannotPlan):
            split(models, batch, accumulation, least)
        with pytest.raises(CannotPlan):
            even_split(caps, batch, accumulation, least)
        return
    for shares in (split(models, batch, accumulation, least), even_split(caps, batch, accumulation, least)):
        assert sum(shares.values()) == batch
        for worker, share in shares.items():
            cap = caps[worker]
            assert least * accumulation <= share
            assert cap is None or share <= cap * accumulation


def test_errors_say_what_to_change() -> None:
    with pytest.raises(CannotPlan, match=r"cannot give 3 workers batch.minShare \(4\) samples in each of 2 passes"):
        even_split(dict.fromkeys("abc"), 23, 2, 4)
    with pytest.raises(CannotPlan, match=r"not even 4 samples fit in the memory of b; drop its pool or lower batch"):
        even_split({"a": None, "b": 3}, 20, 1, 4)


# --- a whole job ------------------------------------------------------------------------------------------------------


class Watched(Job):
    """Every plan that is taken up keeps the minimum, trials and moved shares included."""

    def _take_up(self, draft: PlanDraft) -> None:
        super()._take_up(draft)
        bounds = self.planner.spec.batch
        assert bounds.min_share == LEAST
        assert all(share >= LEAST * draft.passes_of(worker) for worker, share in draft.local_batches.items())
        assert bounds.min <= draft.global_batch <= bounds.max


def planner(initial: int = 64, low: int = 8, high: int = 1024, policy: str = "rex", seed: int = 0) -> Planner:
    return Planner(spec(initial, low, high, policy=policy, min_share=LEAST), np.random.default_rng(seed))


@pytest.mark.parametrize("seed", range(2))
def test_c_118_a_slow_worker_never_gets_less_while_shares_move_and_batches_are_tried(seed: int) -> None:
    job = Watched.of(planner(seed=seed), (*MIX, SLUG), seed=seed, noise_scale=lambda samples: 60.0, epoch=1437)
    job.run(60)
    assert job.plan is not None and job.plan.local_batches["w4"] == LEAST * job.plan.passes_of("w4")
    job.slow["w0"] = 25.0
    job.run(60)
    assert job.kinds().count("rebalanced") >= 2
    assert "trial-started" in job.kinds()


def test_without_a_minimum_the_slow_worker_would_get_less() -> None:
    job = Job.of(Planner(spec(64, 8, 1024), np.random.default_rng(0)), (*MIX, SLUG))
    job.run(30)
    assert job.plan is not None and job.plan.local_batches["w4"] < LEAST


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("run"), st.integers(1, 40)),
            st.tuples(st.just("join"), st.integers(0, 3)),
            st.tuples(st.just("leave"), st.integers(0, 9)),
            st.tuples(st.just("memory"), st.integers(LEAST, 64)),
            st.tuples(st.just("restart"), st.just(0)),
        ),
        min_size=1,
        max_size=10,
    ),
    st.sampled_from(["rex", "even"]),
    st.integers(0, 2**16),
)
@settings(max_examples=10, deadline=None)
def test_c_118_random_histories_keep_the_minimum(history: list[tuple[str, int]], policy: str, seed: int) -> None:
    job = Watched(planner(low=1, policy=policy), {}, np.random.default_rng(seed))
    job.join({"w0": A100, "w1": T4})
    for number, (event, value) in enumerate(history):
        workers = list(job.devices)
        match event:
            case "run":
                job.run(value / 6)
            case "join":
                job.join({f"n{number}": (A100, V100, T4, SLUG)[value]})
            case "leave" if len(workers) > 1:
                job.join({}, leave=(workers[value % len(workers)],))
            case "memory":
                job.memory[job.devices[workers[0]].kind] = value
            case "restart":
                state = PlannerState.model_validate_json(job.planner.state().model_dump_json())
                job.planner = Planner(job.planner.spec, np.random.default_rng(1), state)
                job.join({})
    assert job.planner.impossible is None, "what fits the minimum is never given up"


# --- the batch and its passes -----------------------------------------------------------------------------------------


def team(count: int, ceiling: int | None = None) -> list[WorkerInfo]:
    return [WorkerInfo(f"w{i}", "life", "t4", ceiling) for i in range(count)]


@pytest.mark.parametrize(
    ("batch", "low", "high", "ceiling", "expected"),
    [
        (5, 1, 64, None, (16, 1)),  # raised to the minimum of all four
        (64, 1, 64, 8, (64, 2)),  # memory asks for passes, all of them full enough
        (60, 1, 64, 4, (64, 4)),  # in 4 passes 60 would leave one of 3 samples: raised
        (62, 1, 63, 4, (48, 3)),  # ... or lowered, where there is no room above
    ],
)
def test_c_118_the_batch_gives_way_to_the_minimum(
    batch: int, low: int, high: int, ceiling: int | None, expected: tuple[int, int]
) -> None:
    draft = planner(batch, low, high).set_workers(team(4, ceiling), 0.0)
    assert (draft.global_batch, draft.accumulation) == expected
    assert min(draft.local_batches.values()) >= LEAST * draft.accumulation


def test_c_118_more_workers_make_fewer_passes() -> None:
    state = planner().state().model_copy(update={"global_batch": 64, "accumulation": 8})
    made = Planner(spec(64, 8, 1024, min_share=LEAST), np.random.default_rng(0), state)
    assert made.set_workers(team(2), 0.0).accumulation == 8
    after = made.set_workers(team(4), 1.0)
    assert (after.global_batch, after.accumulation) == (64, 4)


def test_c_118_what_cannot_be_planned_is_refused_with_the_reason() -> None:
    with pytest.raises(CannotPlan, match=r"too small for 5 workers; each needs batch.minShare \(4\) samples"):
        planner(16, 1, 19).set_workers(team(5), 0.0)
    with pytest.raises(CannotPlan, match=r"no batch from 62 to 63 gives each worker batch.minShare \(4\) samples"):
        planner(62, 62, 63).set_workers(team(4, 4), 0.0)
    with pytest.raises(CannotPlan, match="not even 4 samples fit in the memory of w0, w1"):
        planner(64).set_workers(team(2, 3), 0.0)


def test_a_guess_at_the_memory_does_not_go_below_the_minimum() -> None:
    devices, worker = Devices(least=LEAST), WorkerInfo("w0", "life", "t4")
    for failed in (9, 8, 7, 6):
        devices.out_of_memory(worker, failed)
    assert devices.ceiling(worker) == LEAST
    devices.out_of_memory(worker, LEAST)
    assert devices.ceiling(worker) == LEAST - 1, "what did fail is believed"


# --- the search -------------------------------------------------------------------------------------------------------

FAST = StepTimeCurve.fit([Point(x, 0.005 + 0.0002 * x) for x in (4, 16, 64)])
SLOW = StepTimeCurve.fit([Point(x, 0.020 + 0.0110 * x) for x in (4, 16, 64)])
TEAM = (WorkerModel("a", FAST), WorkerModel("b", FAST), WorkerModel("c", SLOW))


def test_c_118_the_search_proposes_nothing_that_breaks_the_minimum() -> None:
    request = SearchRequest(
        number=1,
        models=TEAM,
        memory=(Limits(64.0), Limits(64.0), Limits(64.0)),
        overhead_s=0.005,
        batch_min=3,
        batch_max=1024,
        batch_initial=48,
        current=(48, 3),
        noise_scale=10.0,
        measured=(),
        low=1,
        high=1024,
        other_passes=True,
        min_effect=0.02,
        min_share=LEAST,
    )
    found = candidates(request)
    assert {passes for _, passes in found} == {1, 2, 3, 4, 8}
    assert min(batch for batch, _ in found) == 24
    result = run_search(request)
    assert result.choice is not None
    for batch, passes in [*found, *((c.global_batch, c.accumulation) for c in result.candidates)]:
        assert batch >= LEAST * passes * len(TEAM)
        assert min(split(TEAM, batch, passes, LEAST).values()) >= LEAST * passes


def test_predicted_times_are_those_of_the_split_with_its_minimum() -> None:
    plans = [(12, 1), (20, 1), (64, 1), (24, 2), (96, 2)]
    for plan, predicted in zip(plans, predict(TEAM, 0.0, plans, LEAST), strict=True):
        shares = split(TEAM, *plan, LEAST)
        times = [m.curve.time(shares[m.worker_id] / plan[1]) * plan[1] for m in TEAM]
        assert float(predicted) == pytest.approx(float(max(times)), rel=0.06)
    assert np.isnan(predict(TEAM, 0.0, [(11, 1), (64, 1)], LEAST)).tolist() == [True, False]
