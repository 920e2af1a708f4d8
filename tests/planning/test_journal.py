"""What a planner remembers of its decisions is bounded, and moves of shares do not push verdicts out of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rex_operator.planning.journal import Journal
from rex_operator.planning.types import KEPT_DECISIONS, MAX_DECISIONS, DecisionKind


def written(kinds: list[DecisionKind]) -> Journal:
    journal = Journal()
    for number, kind in enumerate(kinds):
        journal.note(kind, str(number), None, None, float(number), None)
    return journal


def test_a_restless_cluster_does_not_hide_the_verdicts() -> None:
    restless: list[DecisionKind] = ["membership", "accepted"]
    for verdict in ("rejected", "inconclusive", "accepted", "vetoed"):
        restless += ["rebalanced"] * 50
        restless.append(verdict)
    kept = [record.kind for record in written(restless + ["rebalanced"] * 50).newest(KEPT_DECISIONS)]
    assert [kind for kind in kept if kind != "rebalanced"] == [
        "membership",
        "accepted",
        "rejected",
        "inconclusive",
        "accepted",
        "vetoed",
    ]


@given(st.lists(st.sampled_from(["rebalanced", "rescaled", "accepted", "membership"]), max_size=200))
def test_the_newest_are_there_in_their_order(kinds: list[DecisionKind]) -> None:
    journal = written(kinds)
    assert len(journal.decisions) == min(len(kinds), MAX_DECISIONS)
    kept = [int(record.reason) for record in journal.newest(KEPT_DECISIONS)]
    assert len(kept) == min(len(kinds), KEPT_DECISIONS)
    assert kept == sorted(kept)
    half = KEPT_DECISIONS // 2
    assert kept[-half:] == list(range(len(kinds)))[-half:]


def test_what_was_saved_goes_on() -> None:
    saved = written(["rebalanced"] * 40).newest(KEPT_DECISIONS)
    again = Journal(saved)
    again.note("accepted", "news", None, None, 99.0, None)
    assert tuple(again.decisions)[:-1] == saved
    assert again.last is not None
    assert again.last.kind == "accepted"
