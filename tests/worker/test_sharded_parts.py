"""Parts of a cut, and which of them make a whole state: plain arithmetic, for any cuts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rex_worker.sharding.holding import FRESH
from rex_worker.sharding.layout import Cut, chunk, copy_common, shape_of
from rex_worker.sharding.resharding import Claim, choose, furthest

dims = st.lists(st.integers(0, 9), min_size=1, max_size=3)


@given(size=st.integers(0, 40), parts=st.integers(1, 9))
def test_parts_are_those_of_torch(size: int, parts: int) -> None:
    rows = torch.arange(size)
    torchs = [len(part) for part in torch.chunk(rows, parts)] if size else []
    mine = [chunk(size, parts, index) for index in range(parts)]
    assert [stop - start for start, stop in mine if stop > start] == [length for length in torchs if length]
    assert torch.equal(torch.cat([rows[start:stop] for start, stop in mine]), rows)


@given(
    shape=dims,
    old=st.tuples(st.none() | st.integers(0, 2), st.integers(1, 6)),
    new=st.tuples(st.none() | st.integers(0, 2), st.integers(1, 6)),
)
def test_any_new_cut_is_made_of_the_parts_of_any_old_one(
    shape: list[int], old: tuple[int | None, int], new: tuple[int | None, int]
) -> None:
    whole = torch.arange(torch.Size(shape).numel()).view(shape)
    cuts = [Cut(tuple(shape), None if dim is None else dim % len(shape)) for dim, _ in (old, new)]
    for index in range(new[1]):
        region = cuts[1].region(new[1], index)
        part = torch.full(shape_of(region), -1)
        for source in range(old[1]):
            at = cuts[0].region(old[1], source)
            copy_common(part, region, whole[tuple(slice(*side) for side in at)], at)
        assert torch.equal(part, whole[tuple(slice(*side) for side in region)])


def claim(step: int, origin: int, count: int, *indices: int) -> Claim:
    return Claim(step, origin, count, indices)


@pytest.mark.parametrize(
    ("told", "owners"),
    [
        ([claim(7, 2, 2, 1), claim(7, 2, 2, 0), None], (1, 0)),
        ([claim(7, 2, 3, 0), claim(7, 2, 3, 1, 2)], (0, 1, 1)),
        ([claim(7, 2, 3, 0), claim(7, 2, 3, 2)], None),
        ([claim(FRESH, 0, 1, 0), claim(FRESH, 0, 1, 0)], (0,)),
        ([claim(FRESH, 0, 1, 0), claim(9, 4, 2, 0), claim(9, 4, 2, 1)], (1, 2)),
        ([claim(9, 4, 2, 0), claim(8, 3, 2, 0), claim(8, 3, 2, 1)], (1, 2)),
        ([claim(9, 4, 2, 0), claim(9, 3, 2, 1)], None),
        ([claim(9, 3, 1, 0), claim(9, 4, 1, 0)], (1,)),
        ([None, None], None),
    ],
    ids=[
        "all parts", "one holds two", "one is lost", "all fresh", "newcomers", "an older one is whole", "two cuts",
        "the last cut", "nothing",
    ],
)  # fmt: skip
def test_the_most_advanced_whole_state_counts(told: list[Claim | None], owners: tuple[int, ...] | None) -> None:
    choice = choose(told)
    assert (choice.owners if choice is not None else None) == owners


def test_a_part_of_a_later_step_is_known_to_be_missing() -> None:
    assert furthest([claim(9, 4, 2, 0), claim(8, 3, 1, 0), None]) == 9
    assert furthest([None]) == FRESH
