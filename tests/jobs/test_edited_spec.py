"""A wish that is edited while the job trains takes effect at once, and costs nothing that was learned."""

from __future__ import annotations

from tests.jobs.desk import Desk, make_spec, running


def test_a_lower_batch_bound_is_kept_from_the_next_plan_on() -> None:
    desk = running("w0", "w1")
    version = desk.plan.version
    desk.actions += desk.coordinator.set_spec(make_spec(batch={"initial": 16, "min": 8, "max": 32}), desk.now)
    assert desk.plan.global_batch == 32
    assert desk.plan.version == version + 1
    assert desk.coordinator.view().generation == desk.plan.generation, "no new group for a new plan"


def test_what_was_learned_and_decided_stays() -> None:
    desk = running("w0", "w1")
    before = desk.coordinator.planner.state()
    desk.coordinator.set_spec(make_spec(planner={"policy": "rex"}), desk.now)
    after = desk.coordinator.planner.state()
    assert after.decisions[: len(before.decisions)] == before.decisions
    assert after.devices == before.devices


def test_an_edit_beside_the_planning_issues_no_plan() -> None:
    desk = running("w0", "w1")
    version = desk.plan.version
    assert not desk.coordinator.set_spec(make_spec(workers={"min": 1, "max": 4}), desk.now)
    assert desk.plan.version == version


def test_bounds_that_the_group_cannot_meet_wait_and_end_nothing() -> None:
    desk = running("w0", "w1", "w2")
    desk.coordinator.set_spec(make_spec(batch={"initial": 2, "min": 2, "max": 2}), desk.now)
    assert desk.coordinator.view().phase == "Running"
    assert desk.plan.global_batch == 64
    desk.target("w0", "w1")
    assert desk.plan.local_batches == {"w0": 1, "w1": 1}


def test_c_118_a_larger_least_share_is_kept_from_the_next_plan_on() -> None:
    desk = running("w0", "w1", batch={"initial": 8, "min": 2, "max": 512})
    desk.coordinator.set_spec(make_spec(batch={"initial": 8, "min": 2, "max": 512, "minShare": 10}), desk.now)
    assert desk.plan.local_batches == {"w0": 10, "w1": 10}


def test_nothing_changes_after_the_end() -> None:
    desk = running("w0", "w1")
    desk.finish("w0", "w1")
    assert not desk.coordinator.set_spec(make_spec(batch={"initial": 16, "min": 8, "max": 32}), desk.now)


def test_another_rule_for_the_learning_rate_comes_with_a_plan_at_once() -> None:
    desk = running("w0", "w1", "w2", batch={"initial": 1, "min": 1, "max": 512}, learningRate={"scaling": "linear"})
    assert (desk.plan.global_batch, desk.plan.learning_rate_factor) == (3, 3.0)
    bounds = {"initial": 1, "min": 1, "max": 512}
    desk.coordinator.set_spec(make_spec(batch=bounds, learningRate={"scaling": "none", "warmupSamples": 99}), desk.now)
    assert (desk.plan.global_batch, desk.plan.learning_rate_factor, desk.plan.warmup_samples) == (3, 1.0, 99)


def priced(a100: float, objective: str = "goodput") -> dict[str, object]:
    pools = [
        {"name": "a100", "maxWorkers": 8, "pricePerHour": a100},
        {"name": "t4", "maxWorkers": 8, "pricePerHour": 1},
    ]
    return {"pools": pools, "planner": {"policy": "even", "objective": objective}}


def test_an_edited_price_is_told_at_once_and_plans_anew_only_where_it_counts() -> None:
    desk = running("w0", "w1", **priced(3.0))
    assert desk.coordinator.view().planner.price_per_hour == 6.0
    version = desk.plan.version
    desk.coordinator.set_spec(make_spec(**priced(2.0)), desk.now)
    assert desk.coordinator.view().planner.price_per_hour == 4.0
    assert desk.plan.version == version
    desk.coordinator.set_spec(make_spec(**priced(2.0, "cost")), desk.now)
    desk.coordinator.set_spec(make_spec(**priced(1.5, "cost")), desk.now)
    assert desk.coordinator.view().planner.price_per_hour == 3.0
    assert desk.plan.version == version + 2


def test_a_price_hangs_on_the_pool_over_a_restart_too() -> None:
    before = running("w0", "w1", **priced(3.0))
    desk = Desk(before.coordinator.saved(), **priced(3.0))
    assert desk.coordinator.view().planner.price_per_hour == 6.0
