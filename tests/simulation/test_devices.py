"""A simulated device is as fast as it was measured, and in between and below as it is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rex_operator.simulation.communication import Published
from rex_operator.simulation.devices import Tabled
from rex_operator.simulation.published import Row, Table, sia
from tests.published import needs_data, published


def table(*rows: tuple[int, float, float], nodes: int = 1, replicas: int = 1, kind: str = "t4") -> Table:
    return Table("sia/placements-aws", "net", kind, nodes, replicas, "1" * nodes, tuple(Row(*row) for row in rows))


CURVE = table((8, 0.11, 0.01), (16, 0.17, 0.01), (64, 0.41, 0.01))


def test_every_published_row_is_met_without_its_communication() -> None:
    device = Tabled(CURVE)
    assert [device.seconds(b) for b in (8, 16, 64)] == pytest.approx([0.10, 0.16, 0.40])
    assert device.most == 64


def test_between_rows_time_is_a_power_of_the_size() -> None:
    assert Tabled(CURVE).seconds(32) == pytest.approx((0.16 * 0.40) ** 0.5)


def test_below_the_smallest_row_the_first_line_goes_on() -> None:
    assert Tabled(CURVE).seconds(4) == pytest.approx(0.07)


def test_a_steep_first_line_goes_down_to_proportional_and_a_falling_one_stays_flat() -> None:
    steep = Tabled(table((8, 0.1, 0.0), (16, 0.3, 0.0)))
    assert steep.seconds(2) == pytest.approx(0.025)
    assert Tabled(table((8, 0.2, 0.0), (16, 0.1, 0.0))).seconds(2) == pytest.approx(0.2)


def test_above_the_largest_row_there_is_no_time() -> None:
    with pytest.raises(ValueError, match="65 samples: t4 holds 64"):
        Tabled(CURVE).seconds(65)


def test_a_table_of_several_devices_is_no_device() -> None:
    with pytest.raises(ValueError, match="not two batches or more of one GPU alone"):
        Tabled(table((8, 0.1, 0.0), (16, 0.2, 0.0), nodes=2, replicas=2))


@given(st.floats(0.0, 64.0))
def test_time_is_positive_and_never_faster_than_the_best_published_rate(size: float) -> None:
    best = max(b / t for b, t in ((8, 0.10), (16, 0.16), (64, 0.40)))
    assert Tabled(CURVE).seconds(size) >= size / best * (1 - 1e-9)


def test_communication_is_that_of_the_worst_placed_worker_at_its_own_share() -> None:
    slow = table((8, 0.3, 0.2), (64, 0.5, 0.05), nodes=4, replicas=4)
    far = table((8, 0.3, 0.9), nodes=2, replicas=16)
    fast = table((8, 0.3, 0.02), (64, 0.5, 0.01), nodes=2, replicas=4, kind="a100")
    sums = Published([slow, far, fast, table((8, 0.1, 0.5))])
    t4, a100 = Tabled(CURVE), Tabled(table((8, 0.1, 0), (64, 0.2, 0), kind="a100"))
    assert sums.seconds([(t4, 8), (t4, 64), (a100, 64)]) == pytest.approx(0.2)
    assert sums.seconds([(t4, 64), (a100, 8)]) == pytest.approx(0.05)
    assert sums.seconds([(t4, 64), (a100, 8), (a100, 4)]) == pytest.approx(0.05), "it stays beyond the rows"
    assert sums.seconds([(t4, 8)]) == 0.0, "nobody to talk to"
    assert sums.seconds([(t4, 8**1.5 * 8**0.0), (a100, 8)]) == pytest.approx(0.125, abs=1e-3)


def test_waiting_that_grows_with_the_batch_is_no_communication() -> None:
    waiting = table((8, 0.3, 0.1), (16, 0.4, 0.05), (64, 1.5, 0.8), nodes=2, replicas=2)
    device = Tabled(CURVE)
    assert [Published([waiting]).seconds([(device, b)] * 2) for b in (8, 16, 64)] == pytest.approx([0.1, 0.05, 0.05])


@needs_data
def test_the_published_devices_are_as_fast_as_published() -> None:
    for found in sia.tables(published() / "sia"):
        if found.placement == "1":
            device = Tabled(found)
            for row in found.rows:
                assert device.seconds(row.local_batch) == pytest.approx(row.step_s - row.sync_s)
