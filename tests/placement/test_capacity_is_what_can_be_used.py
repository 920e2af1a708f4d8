"""Nodes count by what they can still give, not by their labels."""

from __future__ import annotations

from rex_operator.placement import PoolRequest, Taint, Toleration, place
from tests.placement.clusters import ask, gpu_node, pool


def test_c_062_a_label_without_devices_counts_nothing_and_is_named() -> None:
    nodes = [gpu_node("good", "a100"), gpu_node("broken", "a100", gpus=0)]
    placed = place([pool("fast", "a100", 4)], 1, 4, [], nodes)
    assert placed.add == {"fast": 1}
    assert "1 without nvidia.com/gpu to allocate" in placed.message


def test_c_064_nodes_of_one_type_add_up() -> None:
    nodes = [gpu_node(f"a{i}", "a100") for i in range(2)] + [gpu_node(f"t{i}", "t4") for i in range(2)]
    assert place([pool("a", "a100", 4), pool("t", "t4", 4)], 1, 4, [], nodes).add == {"a": 2, "t": 2}


def test_c_064_pools_that_overlap_count_no_device_twice() -> None:
    nodes = [gpu_node(f"a{i}", "a100") for i in range(2)]
    assert sum(place([pool("x", "a100", 4), pool("y", "a100", 4)], 1, 8, [], nodes).add.values()) == 2


def test_devices_of_others_are_not_counted() -> None:
    assert place([pool("fast", "a100", 4)], 1, 4, [], [gpu_node("n", "a100", gpus=4, used=3)]).add == {"fast": 1}


def test_two_devices_per_worker_do_not_span_nodes() -> None:
    nodes = [gpu_node(f"n{i}", "a100", gpus=3) for i in range(2)]
    assert place([pool("fast", "a100", 9, gpus=2)], 1, 9, [], nodes).add == {"fast": 2}


def test_cordoned_not_ready_and_tainted_nodes_give_nothing() -> None:
    nodes = [
        gpu_node("cordoned", "a100", cordoned=True),
        gpu_node("dead", "a100", ready=False),
        gpu_node("tainted", "a100", taints=(Taint("gpu", "yes"),)),
    ]
    placed = place([pool("fast", "a100", 4)], 1, 4, [], nodes)
    assert not placed.feasible and not placed.no_match
    for reason in ("1 cordoned", "1 not ready", "1 with a taint that is not tolerated"):
        assert reason in placed.message
    tolerant = PoolRequest("fast", 0, 4, ask("a100", tolerations=(Toleration("gpu", "Exists"),)))
    assert place([tolerant], 1, 4, [], nodes).add == {"fast": 1}


def test_a_soft_taint_keeps_nobody_away() -> None:
    nodes = [gpu_node("n", "a100", taints=(Taint("x", effect="PreferNoSchedule"),))]
    assert place([pool("fast", "a100", 4)], 1, 4, [], nodes).add == {"fast": 1}
