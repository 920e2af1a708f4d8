"""Makes the picture of a job out of what its coordinator knows."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from rex_operator.jobs.life import Life
from rex_operator.jobs.membership import by_number
from rex_operator.jobs.view import JobView, WorkerRow, WorkerState
from rex_operator.planning import PlannerView
from rex_operator.planning.calibration import calibrate, forecast

if TYPE_CHECKING:
    from rex_operator.jobs.coordinator import Coordinator

MAX_SHOWN_DECISIONS = 16


def make_view(coordinator: Coordinator) -> JobView:
    """Return the present state of the job."""
    group, progress = coordinator.group, coordinator.progress
    planner = coordinator.planner.view()
    lives = [life for life in coordinator.roster.lives.values() if life.wanted or life in group.members]
    left_over = max(0, len(coordinator.planner.decisions) - MAX_SHOWN_DECISIONS)
    total = progress.total_samples
    rate = planner.throughput
    ended = coordinator.ended
    return JobView(
        name=coordinator.name,
        phase=coordinator.phase,
        generation=group.generation,
        plan=group.plan,
        workers=tuple(_row(coordinator, planner, life) for life in sorted(lives, key=by_number)),
        step=progress.step,
        samples=progress.samples,
        steps_lost=progress.steps_lost,
        total_samples=total,
        progress=min(1.0, progress.samples / total) if total else None,
        steps_per_s=1.0 / planner.step_s if planner.step_s else None,
        samples_per_s=rate,
        goodput=planner.goodput,
        loss=progress.loss,
        diverged=progress.diverged,
        metrics=dict(progress.metrics),
        eta_s=max(0, total - progress.samples) / rate if total and rate else None,
        checkpoint_step=coordinator.known.checkpoint_step,
        checkpoint_trouble=coordinator.known.checkpoint_trouble,
        decisions=tuple(islice(coordinator.planner.decisions, left_over, None)),
        calibration=calibrate(forecast(record) for record in coordinator.planner.decisions),
        stale=tuple(life.worker_id for life in group.members if life.alive and _stale(planner, life)),
        unacked=tuple(life.worker_id for life in group.unacked()),
        last_step=progress.table.last,
        planner=planner,
        converged=coordinator.planner.converged,
        counters=dict(coordinator.roster.counters),
        reason=ended.reason if ended else "",
        message=ended.message if ended else "",
    )


def _row(coordinator: Coordinator, planner: PlannerView, life: Life) -> WorkerRow:
    members, plan = coordinator.group.members, coordinator.group.plan
    inside = life in members
    seen = planner.workers.get(life.worker_id) if inside else None
    return WorkerRow(
        worker_id=life.worker_id,
        incarnation=life.incarnation,
        pool=life.pool,
        device=life.device,
        state=_state(life, inside, _stale(planner, life)),
        rank=members.index(life) if inside else None,
        connected=life.connected,
        local_batch=plan.local_batches.get(life.worker_id) if inside and plan else None,
        compute_s=seen.compute_s if seen else None,
        wait_s=seen.wait_s if seen else None,
        comm_s=seen.comm_s if seen else None,
        step=life.step,
        plan_version=life.plan_version,
        passes=plan.passes_of(life.worker_id) if inside and plan else 1,
        failed=life.failed,
        given_up=life.given_up,
        exits=life.exits,
    )


def _stale(planner: PlannerView, life: Life) -> bool:
    seen = planner.workers.get(life.worker_id)
    return not life.connected or (seen is not None and seen.stale)


def _state(life: Life, inside: bool, stale: bool) -> WorkerState:
    if life.left:
        return life.left
    if life.gone:
        return "gone"
    if life.lost:
        return "lost"
    if life.leaving:
        return "leaving"
    if inside:
        return "stale" if stale else "running"
    if life.ready_at is not None:
        return "ready"
    return "connected" if life.connected else "starting"
