"""However long a series, what is drawn of it is bounded, evenly spread, and ends with the newest point."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rex_operator.report.thin import Thinned


@given(length=st.integers(0, 5000), limit=st.integers(2, 60))
def test_what_is_kept_is_bounded_even_and_up_to_date(length: int, limit: int) -> None:
    series: Thinned[int] = Thinned(limit)
    for point in range(length):
        series.append(point)
    kept = list(series)

    assert len(kept) == len(series) <= limit
    assert series.seen == length
    assert kept == sorted(set(kept))
    if length:
        assert kept[0] == 0
        assert kept[-1] == length - 1
        gaps = {b - a for a, b in pairwise(kept[:-1])}
        assert len(gaps) <= 1, "all but the last point are equally far apart"
        assert len(kept) >= min(length, limit // 2)


def test_a_short_series_is_kept_whole() -> None:
    series: Thinned[int] = Thinned(10)
    for point in range(9):
        series.append(point)
    assert list(series) == list(range(9))


def test_a_limit_below_two_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        Thinned(1)
