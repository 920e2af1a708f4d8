"""Which workers a job gets on one machine."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rex_operator.local.filling import fill
from tests.jobs.desk import make_spec


def test_pools_are_filled_as_listed() -> None:
    spec = make_spec(
        workers={"min": 2, "max": 4},
        pools=[
            {"name": "a100", "maxWorkers": 2},
            {"name": "v100", "maxWorkers": 1},
            {"name": "t4", "maxWorkers": 8},
        ],
    )
    assert [(seat.worker_id, seat.pool.name) for seat in fill(spec)] == [
        ("w0", "a100"),
        ("w1", "a100"),
        ("w2", "v100"),
        ("w3", "t4"),
    ]


pools = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 8)).map(lambda p: (p[0], max(1, p[0] + p[1]))), min_size=1, max_size=5
)


@given(pools, st.integers(1, 40))
def test_every_pool_gets_its_minimum_and_no_more_than_its_maximum(bounds: list[tuple[int, int]], most: int) -> None:
    most = max(most, sum(low for low, _ in bounds))
    spec = make_spec(
        workers={"min": 1, "max": most},
        pools=[{"name": f"p{i}", "minWorkers": low, "maxWorkers": high} for i, (low, high) in enumerate(bounds)],
    )
    seats = fill(spec)
    counts = Counter(seat.pool.name for seat in seats)
    for i, (low, high) in enumerate(bounds):
        assert low <= counts[f"p{i}"] <= high
    assert len(seats) == min(most, sum(high for _, high in bounds))
    assert len({seat.worker_id for seat in seats}) == len(seats)


def test_pods_with_several_devices_are_as_many_workers_and_stay_whole() -> None:
    spec = make_spec(
        workers={"min": 2, "max": 7},
        pools=[{"name": "a100", "maxWorkers": 8, "devicesPerPod": 4}, {"name": "t4", "maxWorkers": 2}],
    )
    assert [(seat.worker_id, seat.pool.name) for seat in fill(spec)] == [
        ("w0-0", "a100"),
        ("w0-1", "a100"),
        ("w0-2", "a100"),
        ("w0-3", "a100"),
        ("w1", "t4"),
        ("w2", "t4"),
    ]
