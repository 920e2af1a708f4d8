"""Votes inside a bucket arrive as they were cast, whatever type the gradients have."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rex_worker.ballot import cast, count, zone_size

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
votes_of_all = st.integers(1, 6).flatmap(
    lambda numbers: st.lists(st.lists(st.floats(), min_size=numbers, max_size=numbers), min_size=1, max_size=9)
)


@pytest.mark.parametrize("dtype", DTYPES)
@given(votes=votes_of_all)
def test_the_sum_of_all_slots_is_the_list_of_votes(dtype: torch.dtype, votes: list[list[float]]) -> None:
    ranks, numbers = len(votes), len(votes[0])
    summed = torch.zeros(zone_size(ranks, numbers), dtype=dtype)
    for rank, vote in enumerate(votes):
        zone = torch.full_like(summed, 7.0)  # what an earlier step left behind
        cast(zone, rank, vote)
        summed += zone
    counted = count(summed, ranks)
    assert [list(map(bits, vote)) for vote in counted] == [list(map(bits, vote)) for vote in votes]


def bits(value: float) -> bytes:
    return b"nan" if math.isnan(value) else struct.pack("d", value)


def test_whole_numbers_up_to_the_protocols_bound_are_exact_in_half_precision() -> None:
    zone = torch.zeros(zone_size(1, 2), dtype=torch.bfloat16)
    cast(zone, 0, [float(2**53), float(2**53 - 1)])
    assert count(zone, 1) == [[float(2**53), float(2**53 - 1)]]
