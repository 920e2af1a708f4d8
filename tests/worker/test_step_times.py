"""Computing, waiting and communicating are told apart by durations only."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rex_worker.timing import StepTimes, WallClock

ARRIVALS = st.lists(st.integers(0, 10_000), min_size=1, max_size=6)


def times(
    monkeypatch: pytest.MonkeyPatch, common: float | None, arrived: float, done: float
) -> tuple[StepTimes, float]:
    moments = iter([arrived, done])
    monkeypatch.setattr(time, "perf_counter", lambda: next(moments))
    made = StepTimes(WallClock(), common)
    return made, made.arrives()


@given(ARRIVALS, st.integers(0, 1000), st.integers(0, 10**6))
def test_waiting_ends_with_the_last_arrival_and_communication_follows(own: list[int], sum_ms: int, skew: int) -> None:
    """Each worker's clock starts somewhere else; they agree all the same."""
    done = max(own) + sum_ms
    for rank, arrived in enumerate(own):
        with pytest.MonkeyPatch.context() as patch:
            common = float(skew * rank)
            mine, seconds = times(patch, common, common + arrived / 1e3, common + done / 1e3)
            assert seconds == pytest.approx(arrived / 1e3)
            assert mine.exchanged(max(own) / 1e3) == common + done / 1e3
        assert mine.wait_s == pytest.approx((max(own) - arrived) / 1e3, abs=1e-6)
        assert mine.comm_s == pytest.approx(sum_ms / 1e3, abs=1e-6)


@pytest.mark.parametrize(("common", "latest"), [(None, None), (None, 2.0), (0.0, None)])
def test_without_a_common_moment_all_of_it_counts_as_waiting(
    monkeypatch: pytest.MonkeyPatch, common: float | None, latest: float | None
) -> None:
    mine, seconds = times(monkeypatch, common, 5.0, 8.0)
    assert seconds == (-1.0 if common is None else 5.0)
    mine.exchanged(latest)
    assert (mine.wait_s, mine.comm_s) == (3.0, None)


def test_a_peer_that_claims_to_arrive_after_the_end_costs_no_negative_time(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, _ = times(monkeypatch, 0.0, 5.0, 8.0)
    mine.exchanged(100.0)
    assert (mine.wait_s, mine.comm_s) == (3.0, 0.0)
