"""A job that shrinks loses its doomed workers first, then the slowest, and rank 0 last."""

from __future__ import annotations

from dataclasses import replace

from rex_operator.placement import Live, choose_victims, place
from tests.placement.clusters import gpu_node, pool, workers


def test_c_061_workers_on_draining_nodes_go_even_rank_0() -> None:
    live = [Live(f"w{i}", "p", draining_node=i < 2, speed=100, rank=i) for i in range(4)]
    assert set(choose_victims(live, 2, {})) == {"w0", "w1"}


def test_the_slowest_goes_and_rank_0_stays() -> None:
    speeds = {"w0": 10.0, "w1": 50.0, "w2": 20.0}
    live = [Live(name, "p", speed=speed, rank=i) for i, (name, speed) in enumerate(speeds.items())]
    assert choose_victims(live, 1, {}) == ["w2"]


def test_one_that_has_not_joined_goes_before_one_that_trains() -> None:
    live = [*workers(p=2), Live("w2", "p")]
    assert choose_victims(live, 1, {}) == ["w2"]


def test_a_pools_minimum_is_kept_while_another_can_give() -> None:
    live = [replace(worker, speed=1.0 if worker.pool == "fast" else 9.0) for worker in workers(fast=2, slow=3)]
    assert all(name in {"w2", "w3", "w4"} for name in choose_victims(live, 2, {"fast": 2}))


def test_a_pool_above_its_maximum_gives_first() -> None:
    nodes = [gpu_node("n", "a100", gpus=4)]
    placed = place([pool("a", "a100", 1), pool("b", "a100", 4)], 1, 4, workers(a=2, b=1), nodes)
    assert placed.drop == ("w1",)


def test_c_054_a_repeated_decision_names_the_same_workers() -> None:
    live = workers(p=8)
    assert {tuple(choose_victims(live, 2, {})) for _ in range(10)} == {("w7", "w6")}
