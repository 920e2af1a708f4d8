from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rex_worker.exact import MAX_PARTS, ExactSum

numbers = st.lists(st.floats(-1e290, 1e290, allow_nan=False), max_size=400)


def summed(terms: list[float]) -> ExactSum:
    total = ExactSum()
    for term in terms:
        total.add(term)
    return total


@given(terms=numbers)
@settings(deadline=None)
def test_it_is_the_exact_sum_rounded_once(terms: list[float]) -> None:
    assert summed(terms).value() == float(sum(map(Fraction, terms), Fraction(0)))


@given(terms=numbers, seed=st.integers(0, 1000), ways=st.integers(1, 8))
@settings(deadline=None)
def test_neither_order_nor_a_split_over_workers_changes_a_bit(terms: list[float], seed: int, ways: int) -> None:
    shuffled = list(terms)
    random.Random(seed).shuffle(shuffled)
    workers = [summed(shuffled[rank::ways]).parts() for rank in range(ways)]
    together = summed([part for parts in workers for part in parts])
    assert together.value() == summed(terms).value()


@given(exponents=st.lists(st.integers(-1074, 900), max_size=1000))
@settings(deadline=None)
def test_what_travels_is_bounded_whatever_was_summed(exponents: list[int]) -> None:
    total = summed([math.ldexp(1.0, exponent) for exponent in exponents])
    assert len(total.parts()) <= MAX_PARTS - 1
    assert sum(map(Fraction, total.parts()), Fraction(0)) == sum((Fraction(2) ** e for e in exponents), Fraction(0))
    assert len(total._terms) <= 256


@pytest.mark.parametrize(
    ("terms", "expected"), [([1.0, math.inf], math.inf), ([math.inf, -math.inf, 3.0], math.nan), ([math.nan], math.nan)]
)
def test_what_is_not_finite_stays_what_it_is_in_any_sum(terms: list[float], expected: float) -> None:
    found = summed([*summed(terms[:1]).parts(), *summed(terms[1:]).parts()]).value()
    assert found == expected or (math.isnan(found) and math.isnan(expected))
