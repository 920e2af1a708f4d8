"""Promise 9: a job below its minimum starts only as a whole."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from rex_operator.placement import place
from tests.placement.clusters import ask, gpu_node, pool, workers


def test_c_052_a_pools_own_minimum_keeps_everything_back() -> None:
    nodes = [gpu_node("f", "a100", gpus=2), gpu_node("s", "t4", gpus=6)]
    placed = place([pool("fast", "a100", 8, 4), pool("slow", "t4", 8, 2)], 6, 12, [], nodes)
    assert not placed.feasible
    assert placed.add == {}
    assert "pool fast needs 4" in placed.message


def test_the_total_minimum_keeps_everything_back() -> None:
    placed = place([pool("fast", "a100", 8)], 3, 8, [], [gpu_node("f", "a100", gpus=2)])
    assert (placed.feasible, placed.add) == (False, {})
    assert "room for 2 workers, at least 3 are needed" in placed.message


def test_c_050_a_second_gang_sees_the_first_ones_unbound_pods() -> None:
    nodes = [gpu_node(f"n{i}", "a100") for i in range(4)]
    request = [pool("fast", "a100", 4)]
    first = place(request, 3, 3, [], nodes)
    second = place(request, 3, 3, [], nodes, reserved=[ask("a100")] * 3)
    assert first.add == {"fast": 3}
    assert (second.feasible, second.add) == (False, {})


def test_c_065_room_for_less_than_the_maximum_starts_and_grows_later() -> None:
    request = [pool("fast", "a100", 4)]
    nodes = [gpu_node(f"n{i}", "a100") for i in range(3)]
    assert place(request, 2, 4, [], nodes).add == {"fast": 3}
    used = [gpu_node(f"n{i}", "a100", used=1) for i in range(3)]
    assert place(request, 2, 4, workers(fast=3), used).add == {}
    assert place(request, 2, 4, workers(fast=3), [*used, gpu_node("n3", "a100")]).add == {"fast": 1}


def test_c_185_without_node_rights_the_selectors_decide() -> None:
    assert place([pool("fast", "a100", 4)], 2, 4, [], None).add == {"fast": 4}


@given(
    room=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=5),
    pools=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=3),
    wanted=st.tuples(st.integers(1, 6), st.integers(0, 6)),
    have=st.integers(0, 4),
)
def test_never_below_the_minimum_and_never_above_any_maximum(
    room: list[tuple[int, int]], pools: list[tuple[int, int]], wanted: tuple[int, int], have: int
) -> None:
    nodes = [gpu_node(f"n{i}", f"d{i % len(pools)}", gpus, min(used, gpus)) for i, (gpus, used) in enumerate(room)]
    requests = [pool(f"p{i}", f"d{i}", max(most, least), least) for i, (least, most) in enumerate(pools)]
    least, extra = wanted
    assume(sum(request.min_workers for request in requests) <= least + extra)
    live = workers(p0=min(have, requests[0].max_workers, least + extra))
    placed = place(requests, least, least + extra, live, nodes)
    total = len(live) - len(placed.drop) + sum(placed.add.values())
    assert total <= least + extra
    for request in requests:
        count = sum(w.pool == request.name and w.worker_id not in placed.drop for w in live)
        count += placed.add.get(request.name, 0)
        assert count <= request.max_workers
        if placed.feasible and not placed.drop:
            assert count >= request.min_workers
    if placed.feasible and not placed.drop:
        assert total >= least
    else:
        assert placed.add == {}
    for i, request in enumerate(requests):
        free = sum(int(n.free["nvidia.com/gpu"]) for n in nodes if n.labels["rex.dev/device"] == f"d{i}")
        assert placed.add.get(request.name, 0) <= free
