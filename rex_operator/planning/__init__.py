"""The brain of one job: from step reports to plans, with evidence. Pure: no I/O, the clock comes in."""

from rex_operator.planning.planner import Planner
from rex_operator.planning.search import SearchRequest, SearchResult, run_search
from rex_operator.planning.state import PlannerState
from rex_operator.planning.types import (
    CandidateSummary,
    CannotPlan,
    Cost,
    DecisionRecord,
    Evidence,
    PlanDraft,
    PlannerView,
    PlanSummary,
    TrialView,
    WorkerInfo,
    WorkerView,
)

__all__ = [
    "CandidateSummary",
    "CannotPlan",
    "Cost",
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
