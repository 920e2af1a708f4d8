"""A job as people want to see it: one frozen picture from which progress lines, status and reports are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from rex_operator.jobs.steps import GroupStep
from rex_operator.planning import DecisionRecord, PlannerView
from rex_operator.planning.calibration import Calibration
from rex_worker.protocol import Plan

Phase: TypeAlias = Literal[
    "Pending", "Running", "Recovering", "Finishing", "Stopping", "Stopped", "Succeeded", "Failed"
]
"""``Recovering``: the group lost a member and waits for enough others. ``Stopped``: all left on request."""

WorkerState: TypeAlias = Literal[
    "starting", "connected", "ready", "running", "stale", "leaving", "lost", "gone", "finished", "drained", "stopped"
]


@dataclass(frozen=True)
class WorkerRow:
    """One life. Times are seconds per step; ``rank`` is None outside the group."""

    worker_id: str
    incarnation: str
    pool: str
    device: str
    state: WorkerState
    rank: int | None
    connected: bool
    local_batch: int | None
    compute_s: float | None
    wait_s: float | None
    comm_s: float | None
    step: int
    plan_version: int
    passes: int = 1
    """In which it takes its local batch."""
    failed: str = ""
    given_up: bool = False
    """Lost for so long that another should take its place."""
    exits: tuple[int, ...] = ()
    """How its earlier processes in the same pod ended."""


@dataclass(frozen=True)
class JobView:
    """State of a job at one moment."""

    name: str
    phase: Phase
    generation: int
    plan: Plan | None
    workers: tuple[WorkerRow, ...]
    step: int
    samples: int
    total_samples: int
    steps_lost: int
    """Applied steps whose effect was lost, over the job's life."""
    progress: float | None
    """Share of the run that is done, 0 to 1; None when the length of the run is not known."""
    steps_per_s: float | None
    samples_per_s: float | None
    goodput: float | None
    loss: float | None
    diverged: bool
    metrics: dict[str, float]
    eta_s: float | None
    checkpoint_step: int
    checkpoint_trouble: str = field(default="", kw_only=True)
    """Why the newest checkpoint could not be written; empty once another one is safe."""
    decisions: tuple[DecisionRecord, ...]
    """The newest ones, oldest first."""
    calibration: Calibration | None = field(default=None, kw_only=True)
    """How expectations came out, over all decisions that are kept."""
    stale: tuple[str, ...]
    """Members from which nothing is heard while the group stands still."""
    unacked: tuple[str, ...]
    """Members not yet known to run the newest plan."""
    last_step: GroupStep | None
    planner: PlannerView
    converged: bool
    counters: dict[str, int] = field(default_factory=dict)
    """Reports set aside, by cause."""
    reason: str = ""
    message: str = ""
