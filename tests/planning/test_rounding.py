"""Whole shares next to wanted ones: exact sum, within bounds, as near as can be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rex_operator.planning import CannotPlan
from rex_operator.planning.rounding import settle


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.none() | st.integers(1, 500)), min_size=1, max_size=12),
    st.integers(1, 4000),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_the_sum_is_exact_and_bounds_hold(
    team: list[tuple[float, int | None]], batch: int, accumulation: int, min_share: int
) -> None:
    wanted = {f"w{i}": want for i, (want, _) in enumerate(team)}
    ceilings = {f"w{i}": cap for i, (_, cap) in enumerate(team)}
    try:
        shares = settle(wanted, ceilings, batch, accumulation, min_share)
    except CannotPlan:
        return
    assert sum(shares.values()) == batch
    for worker, share in shares.items():
        cap = ceilings[worker]
        assert share >= (1 if min_share == 1 else min_share * accumulation)
        assert cap is None or share <= max(cap * accumulation, 1)


def test_what_can_be_run_as_it_is_stays_and_rounding_is_by_largest_remainder() -> None:
    free = {"a": None, "b": None, "c": None}
    assert settle({"a": 5.0, "b": 3.0, "c": 2.0}, free, 10) == {"a": 5, "b": 3, "c": 2}
    assert settle({"a": 3.34, "b": 3.4, "c": 3.26}, free, 10) == {"a": 3, "b": 4, "c": 3}
    assert settle({"a": 3.5, "b": 3.5, "c": 3.0}, free, 10) == {"a": 4, "b": 3, "c": 3}


def test_what_one_cannot_take_is_spread_evenly() -> None:
    assert settle({"a": 90.0, "b": 30.0, "c": 30.0}, {"a": 60, "b": None, "c": None}, 150) == {
        "a": 60,
        "b": 45,
        "c": 45,
    }


def test_without_room_it_says_so() -> None:
    with pytest.raises(CannotPlan, match="does not fit"):
        settle({"a": 1.0}, {"a": 5}, 10)
