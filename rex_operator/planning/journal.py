"""The decisions of one job, each with its evidence: bounded, the newest last.

Where devices change their speeds, shares move many times between two trials. So that these moves do not push the
verdicts out, the older ones of them go first when room is needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import TypedDict, Unpack

from rex_operator.planning.types import (
    MAX_CANDIDATES,
    MAX_DECISIONS,
    CandidateSummary,
    Cost,
    DecisionKind,
    DecisionRecord,
    Evidence,
    PlanDraft,
    PlanSummary,
)
from rex_operator.planning.windows import GroupStep

_LONGEST_REASON = 512


class Grounds(TypedDict, total=False):
    """What a decision stands on, beside its reason."""

    evidence: Evidence | None
    expectation: float | None
    candidates: tuple[CandidateSummary, ...]
    cost: Cost | None


_PASSING = frozenset({"rebalanced", "rescaled"})
"""Kinds that matter while they are new."""


class Journal:
    """Writes records; ``decisions`` may be read by anyone."""

    def __init__(self, saved: Iterable[DecisionRecord] = ()) -> None:
        self.decisions: deque[DecisionRecord] = deque(saved, maxlen=MAX_DECISIONS)

    @property
    def last(self) -> DecisionRecord | None:
        """The newest decision."""
        return self.decisions[-1] if self.decisions else None

    def note(
        self,
        kind: DecisionKind,
        reason: str,
        before: PlanDraft | None,
        after: PlanDraft | None,
        at: float,
        latest: GroupStep | None,
        **grounds: Unpack[Grounds],
    ) -> None:
        """Write down a decision of job time ``at``, after the group step ``latest``."""
        if len(self.decisions) == MAX_DECISIONS:
            del self.decisions[_dispensable(self.decisions)]
        self.decisions.append(
            DecisionRecord(
                time_s=at,
                step=latest.step if latest else 0,
                samples=latest.samples if latest else 0,
                kind=kind,
                plan_from=PlanSummary.of(before) if before else None,
                plan_to=PlanSummary.of(after) if after else None,
                reason=reason[:_LONGEST_REASON],
                evidence=grounds.get("evidence"),
                expectation=grounds.get("expectation"),
                candidates=grounds.get("candidates", ())[:MAX_CANDIDATES],
                cost=grounds.get("cost"),
            )
        )

    def newest(self, most: int) -> tuple[DecisionRecord, ...]:
        """Return at most so many, in their order."""
        kept = deque(self.decisions)
        while len(kept) > most:
            del kept[_dispensable(kept)]
        return tuple(kept)


def _dispensable(decisions: deque[DecisionRecord]) -> int:
    """Return the index of the oldest passing decision in the older half; of the oldest at all if there is none."""
    older = islice(decisions, len(decisions) // 2)
    return next((i for i, record in enumerate(older) if record.kind in _PASSING), 0)
