"""The brain of one job: from step reports to plans, with evidence. Pure: no I/O, the clock comes in."""

from rex_operator.planning.planner import Planner, run_search
from rex_operator.planning.types import (
    CandidateSummary,
    CannotPlan,
    DecisionRecord,
    Evidence,
    PlanDraft,
    PlannerState,
    PlannerView,
    PlanSummary,
    SearchRequest,
    SearchResult,
    TrialView,
    WorkerInfo,
    WorkerView,
)

__all__ = [
    "CandidateSummary",
    "CannotPlan",
    "DecisionRecord",
    "Evidence",
    "PlanDraft",
    "PlanSummary",
    "Planner",
    "PlannerState",
    "PlannerView",
    "SearchRequest",
    "SearchResult",
    "TrialView",
    "WorkerInfo",
    "WorkerView",
    "run_search",
]
