"""The state machine of one job's planning (a first form: the even split)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from rex_operator.api.spec import RexJobSpec
from rex_operator.planning.types import (
    MAX_DECISIONS,
    CannotPlan,
    DecisionRecord,
    PlanDraft,
    PlannerState,
    PlannerView,
    PlanSummary,
    SearchRequest,
    SearchResult,
    WorkerInfo,
    WorkerView,
)
from rex_worker.protocol import StepReport


class Planner:
    """Plans batch and shares of one job. Pure: the clock (``now``, monotonic seconds) and the generator come in."""

    def __init__(self, spec: RexJobSpec, rng: np.random.Generator, saved: PlannerState | None = None) -> None:
        self.spec = spec
        self.rng = rng
        self.decisions: deque[DecisionRecord] = deque(saved.decisions if saved else (), maxlen=MAX_DECISIONS)
        self.converged = False
        self._batch = saved.global_batch if saved else spec.batch.initial
        self._accumulation = saved.accumulation if saved else 1
        self._workers: dict[str, WorkerInfo] = {}
        self._plan: PlanDraft | None = None

    def set_workers(self, workers: Sequence[WorkerInfo], now: float) -> PlanDraft:
        """Take over a new membership and return the plan it starts under. Raises ``CannotPlan``."""
        before = self._plan
        self._workers = {worker.worker_id: worker for worker in workers}
        n = len(self._workers)
        if not 1 <= n <= self.spec.batch.max:
            raise CannotPlan(f"a batch of at most {self.spec.batch.max} cannot be split over {n} workers")
        batch = max(self._batch, n)
        share, rest = divmod(batch, n)
        shares = {worker: share + (i < rest) for i, worker in enumerate(self._workers)}
        self._plan = PlanDraft(batch, self._accumulation, shares, 1.0)
        self.decisions.append(
            DecisionRecord(
                time_s=now,
                step=0,
                samples=0,
                kind="membership",
                plan_from=PlanSummary.of(before) if before else None,
                plan_to=PlanSummary.of(self._plan),
                reason=f"{n} workers share the batch of {batch}.",
            )
        )
        return self._plan

    def plan_running(self, version: int, generation: int, draft: PlanDraft, step: int, now: float) -> None:
        """All workers run ``draft`` since ``step``: its window begins."""

    def observe(self, worker_id: str, incarnation: str, generation: int, report: StepReport, now: float) -> None:
        """Take in one step of one worker; repeats change nothing."""

    def out_of_memory(self, worker_id: str, local_batch: int, now: float) -> PlanDraft | None:
        """Learn that ``local_batch`` does not fit on the worker; return the plan to go on with."""
        return None

    def poll(self, now: float) -> PlanDraft | SearchRequest | None:
        """Decide what is ripe."""
        return None

    def complete(self, request: SearchRequest, result: SearchResult, now: float) -> PlanDraft | None:
        """Take the answer of a search."""
        return None

    def view(self) -> PlannerView:
        """Return the planner at a glance."""
        shares = self._plan.local_batches if self._plan else {}
        return PlannerView(
            workers={worker: WorkerView(share) for worker, share in shares.items()},
            last_decision=self.decisions[-1] if self.decisions else None,
        )

    def state(self) -> PlannerState:
        """Return what has been learned, to be kept."""
        return PlannerState(global_batch=self._batch, accumulation=self._accumulation, decisions=tuple(self.decisions))


def run_search(request: SearchRequest) -> SearchResult:
    """Run a search; pure, for a thread or a process pool."""
    return SearchResult(request.number)
