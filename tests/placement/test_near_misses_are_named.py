"""A pool that finds no node says what the nodes carry that looks like it."""

from __future__ import annotations

from decimal import Decimal

from rex_operator.placement import Demand, PoolRequest, place
from tests.placement.clusters import gpu_node, pool


def test_c_013_a_value_that_differs_by_case() -> None:
    placed = place([pool("fast", "A100", 2)], 1, 2, [], [gpu_node("n", "a100")])
    assert placed.no_match
    assert "pool fast matches no node (1 nodes seen)" in placed.message
    assert "did you mean rex.dev/device=a100?" in placed.message


def test_c_013_a_key_that_differs_by_spelling() -> None:
    asked = PoolRequest("fast", 0, 2, Demand({"pods": Decimal(1)}, {"rex.dev/devise": "a100"}))
    placed = place([asked], 1, 2, [], [gpu_node("n", "a100")])
    assert "did you mean rex.dev/device?" in placed.message


def test_other_values_are_listed_when_none_is_near() -> None:
    placed = place([pool("fast", "h100", 2)], 1, 2, [], [gpu_node("n", "t4"), gpu_node("m", "v100")])
    assert "rex.dev/device=t4" in placed.message


def test_one_pool_without_nodes_does_not_hold_up_the_others() -> None:
    placed = place([pool("fast", "A100", 2), pool("slow", "t4", 2)], 1, 2, [], [gpu_node("n", "t4")])
    assert placed.add == {"slow": 1}
    assert "pool fast matches no node" in placed.message
