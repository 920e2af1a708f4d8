"""The decisions of one job, each with its evidence: bounded, the newest last."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
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
