"""Few candidates, each of them possible, the ones that memory asks for among them."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from rex_operator.planning.candidates import REACH, Range, enumerate_candidates


@given(
    low=st.integers(1, 500),
    width=st.integers(0, 5000),
    ran=st.sets(st.integers(1, 5000), min_size=1, max_size=5),
    workers=st.integers(1, 16),
    room=st.one_of(st.just(math.inf), st.integers(16, 600).map(float)),
    passes=st.integers(1, 9),
)
def test_all_are_within_bounds_reach_and_memory(
    low: int, width: int, ran: set[int], workers: int, room: float, passes: int
) -> None:
    found = enumerate_candidates(Range(low, low + width, ran, workers, room), ran, passes)
    assert len(found) == len(set(found)) <= 1000
    for batch, own in found:
        assert low <= batch <= low + width
        assert min(ran) / REACH <= batch <= max(ran) * REACH
        assert own * workers <= batch <= own * room


def test_the_fewest_passes_that_memory_needs_are_among_them() -> None:
    found = enumerate_candidates(Range(100, 1000, {600}, 4, 220.0), {600}, 1)
    assert (600, 3) in found
    assert all(passes >= 3 for batch, passes in found if batch == 600)


def test_the_largest_batch_that_memory_holds_in_a_number_of_passes_is_among_them() -> None:
    found = enumerate_candidates(Range(100, 1000, {400}, 4, 223.0), {400}, 1)
    assert {(223, 1), (446, 2)} <= set(found)
