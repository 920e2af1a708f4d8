"""The workers of a pod come and go together; all numbers that a user writes are of workers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rex_operator.placement import Live, choose_victims, place
from tests.placement.clusters import gpu_node, pool


def pods(*names: str, of: str = "fast", devices: int = 4) -> list[Live]:
    return [Live(name, of, rank=i, devices=devices) for i, name in enumerate(names)]


def test_a_gang_is_counted_in_workers_and_made_in_whole_pods() -> None:
    request = [pool("fast", "a100", 8, devices=4)]
    nodes = [gpu_node("n0", "a100", gpus=8)]
    assert place(request, 8, 8, [], nodes).add == {"fast": 2}
    assert place(request, 4, 8, pods("w0"), [gpu_node("n0", "a100", gpus=8, used=4)]).add == {"fast": 1}


def test_devices_on_two_nodes_make_no_pod() -> None:
    nodes = [gpu_node(f"n{i}", "a100", gpus=4, used=2) for i in range(2)]
    placed = place([pool("fast", "a100", 4, devices=4)], 4, 4, [], nodes)
    assert (placed.feasible, placed.add) == (False, {})
    assert "room for 0 workers, at least 4 are needed" in placed.message


def test_pools_of_both_kinds_fill_up_to_the_maximum() -> None:
    request = [pool("fast", "a100", 8, devices=4), pool("slow", "t4", 8)]
    nodes = [gpu_node("n0", "a100", gpus=4), gpu_node("n1", "t4", gpus=8)]
    assert place(request, 4, 10, [], nodes).add == {"fast": 1, "slow": 6}


def test_no_more_is_awaited_than_whole_pods_can_bring() -> None:
    full = place([pool("fast", "a100", 8, devices=4)], 4, 7, pods("w0"), [gpu_node("n0", "a100", gpus=8)])
    assert (full.add, full.message) == ({}, "")


def test_a_job_that_shrinks_gives_up_whole_pods() -> None:
    nodes = [gpu_node("n0", "a100", gpus=8)]
    placed = place([pool("fast", "a100", 8, devices=4)], 4, 4, pods("w0", "w1"), nodes)
    assert placed.drop == ("w1",)


def test_no_pod_goes_needlessly_when_a_large_one_has_to() -> None:
    live = [*pods("w0"), Live("w4", "slow", rank=4), Live("w5", "slow", rank=5)]
    assert choose_victims(live, 3, {}) == ["w0"], "the two small ones alone would not have been enough"
    assert set(choose_victims(live, 2, {})) == {"w4", "w5"}


@given(
    room=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 8)), max_size=6),
    wide=st.integers(1, 4),
    most=st.integers(1, 16),
    least=st.integers(1, 16),
)
def test_promise_9_holds_in_workers(room: list[tuple[str, int]], wide: int, most: int, least: int) -> None:
    least = min(least, most)
    request = [pool("a", "a", 8 * wide, devices=wide), pool("b", "b", 8)]
    nodes = [gpu_node(f"n{i}", device, gpus) for i, (device, gpus) in enumerate(room)]
    placed = place(request, least, most, [], nodes)
    total = wide * placed.add.get("a", 0) + placed.add.get("b", 0)
    assert total <= most
    assert total >= least if placed.feasible else placed.add == {}
    assert placed.add.get("a", 0) <= sum(gpus // wide for device, gpus in room if device == "a")
