from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rex_worker.agreement import VOTE_NUMBERS, Vote, Wish, decide
from rex_worker.errors import Desynchronised

BASE = Vote(
    plan_version=3,
    generation=2,
    step=10,
    epoch=1,
    offset=40,
    extent=64,
    data_mark=0,
    wish=0,
    loss=0.25,
    units=-1.0,
    grad_sq=1.5,
    arrived_s=0.5,
)

votes = st.builds(
    Vote,
    plan_version=st.integers(0, 2**53),
    generation=st.integers(0, 2**53),
    step=st.integers(0, 2**53),
    epoch=st.integers(0, 2**53),
    offset=st.integers(0, 2**53),
    extent=st.integers(0, 2**53),
    data_mark=st.integers(0, 2**32 - 1),
    wish=st.integers(0, 15),
    loss=st.floats(allow_nan=False),
    units=st.floats(-1, 1e300),
    grad_sq=st.floats(0, 1e300),
    arrived_s=st.floats(-1, 1e6),
)


@given(votes)
def test_a_vote_survives_the_wire(vote: Vote) -> None:
    row = vote.encode()
    assert len(row) == VOTE_NUMBERS
    assert Vote.decode(row) == vote


@given(
    versions=st.lists(st.integers(3, 6), min_size=1, max_size=6), generations=st.lists(st.integers(2, 4), min_size=6)
)
def test_a_change_is_taken_up_exactly_when_all_hold_the_same_newest(
    versions: list[int], generations: list[int]
) -> None:
    rows = [
        replace(BASE, plan_version=version, generation=generation)
        for version, generation in zip(versions, generations, strict=False)
    ]
    decision = decide(rows, plan_version=3, generation=2)
    held = {row.plan_version for row in rows}
    named = {row.generation for row in rows}
    assert decision.plan_version == (min(held) if len(held) == 1 and min(held) > 3 else None)
    assert decision.generation == (min(named) if len(named) == 1 and min(named) > 2 else None)
    assert decision == decide(list(reversed(rows)), plan_version=3, generation=2), "the same on every rank"


def test_one_stops_for_all_but_only_all_disband() -> None:
    stopping = decide([BASE, replace(BASE, wish=Wish.STOP | Wish.LEAVE)], plan_version=3, generation=2)
    assert stopping.stop and not stopping.disband
    leaving = decide([replace(BASE, wish=Wish.LEAVE)] * 3, plan_version=3, generation=2)
    assert leaving.disband and not leaving.stop
    voided = decide([BASE, replace(BASE, wish=Wish.VOID)], plan_version=3, generation=2)
    assert voided.void and not voided.finish


def test_the_last_arrival_is_known_only_when_all_can_tell_theirs() -> None:
    rows = [replace(BASE, arrived_s=arrived) for arrived in (0.1, 0.4, 0.0)]
    assert decide(rows, plan_version=3, generation=2).latest_s == 0.4
    assert decide([*rows, replace(BASE, arrived_s=-1.0)], plan_version=3, generation=2).latest_s is None


def test_losses_add_up_to_the_mean_over_the_batch() -> None:
    assert decide([BASE, replace(BASE, loss=0.5)], plan_version=3, generation=2).loss == 0.75
    assert math.isnan(decide([BASE, replace(BASE, loss=math.nan)], plan_version=3, generation=2).loss)


@pytest.mark.parametrize("other", [{"step": 11}, {"epoch": 2}, {"offset": 50}])
def test_workers_at_different_steps_stop_instead_of_training_apart(other: dict[str, int]) -> None:
    with pytest.raises(Desynchronised, match=r"rank 0: step 10, epoch 1\+40; rank 1"):
        decide([BASE, replace(BASE, **other)], plan_version=3, generation=2)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"extent": 65}, "rank 0: 32 samples, checksum 00000000; rank 1: 32 samples, the last, checksum"),
        ({"extent": 40}, "rank 1: 20 samples, checksum"),
        ({"data_mark": 0xBAD}, "rank 1: 32 samples, checksum 00000bad"),
    ],
)
def test_workers_that_were_given_different_data_stop_instead_of_training_on_it(
    other: dict[str, int], words: str
) -> None:
    with pytest.raises(Desynchronised, match=r"read different data for the step at epoch 1\+40") as error:
        decide([BASE, replace(BASE, **other)], plan_version=3, generation=2)
    assert words in str(error.value)
