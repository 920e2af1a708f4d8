"""The status of a job, derived anew in each pass from what was observed.

Conditions and phase come from one place, so they cannot contradict each other: the phase is a function of the
conditions. A condition keeps the time of its last change as long as its status stays the same.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from rex_operator.api import JobStatus
from rex_operator.api.status import (
    MAX_UNACKED,
    Condition,
    ConditionType,
    Phase,
    PoolStatus,
    WorkerCounts,
)
from rex_operator.controller.deadlines import GIVEN_BACK
from rex_operator.controller.figures import training, whole
from rex_operator.controller.observation import Observation, Outcome
from rex_operator.controller.pods import PodView
from rex_operator.jobs import JobView
from rex_operator.placement import Placement

_TRAINING = frozenset({"Running", "Finishing"})
_READY = frozenset({"ready", "running", "stale", "leaving", "finished"})
Flag = Literal["True", "False", "Unknown"]


class _Conditions:
    """Conditions under construction; each keeps its transition time while its status stays."""

    def __init__(self, seen: Observation) -> None:
        self._seen = seen
        self._made = {condition.type: condition for condition in seen.status.conditions}

    def set(self, kind: ConditionType, status: Flag, reason: str, message: str = "") -> None:
        before = self._made.get(kind)
        since = before.last_transition_time if before and before.status == status else self._seen.now
        if kind == "Scheduled" and reason == GIVEN_BACK:
            since = self._seen.now
        self._made[kind] = Condition(
            type=kind,
            status=status,
            reason=reason,
            message=message[:2048],
            observed_generation=self._seen.generation,
            last_transition_time=since,
        )

    def get(self, kind: ConditionType) -> Condition | None:
        return self._made.get(kind)

    def all(self) -> list[Condition]:
        return sorted(self._made.values(), key=lambda condition: condition.type)


def picture(
    seen: Observation,
    placement: Placement | None = None,
    *,
    outcome: Outcome | None = None,
    given_back: str = "",
) -> JobStatus:
    """The status that follows from what was seen.

    Args:
        seen: the job.
        placement: what placement said; None when it was not asked.
        outcome: how the job has just ended; None while it runs, and afterwards.
        given_back: why the job's devices are given back in this pass.
    """
    conditions = _Conditions(seen)
    finished = seen.status.finished
    if not finished:
        _observe(conditions, seen, placement, given_back)
        if outcome is not None:
            conditions.set("Running", "False", outcome.reason, outcome.message)
            conditions.set("Succeeded" if outcome.success else "Failed", "True", outcome.reason, outcome.message)
    phase = seen.status.phase if finished else _phase(conditions, seen)
    cause = _cause(conditions, phase)
    live, view = seen.live, seen.view
    ready = {pod.uid: _ready(seen, pod) for pod in live}
    pools = [
        PoolStatus(
            name=pool.name,
            device=pool.device,
            desired=sum(pod.devices for pod in live if pod.pool == pool.name),
            ready=sum(ready[pod.uid] for pod in live if pod.pool == pool.name),
        )
        for pool in seen.spec.pools
    ]
    desired, count = sum(pod.devices for pod in live), sum(ready.values())
    running = conditions.get("Running")
    started = seen.status.start_time or (seen.now if running is not None and running.status == "True" else None)
    status = seen.status.model_copy(
        update={
            "phase": phase,
            "reason": cause.reason if cause else "",
            "message": cause.message if cause else "",
            "observed_generation": seen.generation,
            "conditions": conditions.all(),
            "workers": WorkerCounts(desired=desired, ready=count, summary=f"{count}/{desired}"),
            "pools": pools,
            "pools_summary": " ".join(f"{pool.name}:{pool.desired}" for pool in pools if pool.desired),
            "replicas": desired,
            "selector": seen.owner.selector(),
            "start_time": started,
            **training(seen.status, view),
        }
    )
    return status.model_copy(update={"progress": whole(status.progress)}) if phase == "Succeeded" else status


def _observe(conditions: _Conditions, seen: Observation, placement: Placement | None, given_back: str) -> None:
    if seen.invalid:
        conditions.set("Validated", "False", "Invalid", seen.invalid)
    elif seen.blocked:
        conditions.set("Validated", "False", "PodsRefused", seen.blocked)
    else:
        conditions.set("Validated", "True", "Accepted", "the API server accepts the pods of this job")
    if given_back:
        conditions.set("Scheduled", "False", GIVEN_BACK, given_back)
    elif placement is not None:
        _scheduled(conditions, seen, placement)
    if seen.view is not None and seen.view.phase in _TRAINING:
        conditions.set("Running", "True", "Training", "a group of workers trains")
    else:
        conditions.set("Running", "False", *_why_not_running(seen, placement))
    _plan_applied(conditions, seen.view)
    if seen.spec.suspend:
        leaving = any(pod.live for pod in seen.pods)
        message = "workers save and leave" if leaving else "no workers, no devices held"
        conditions.set("Suspended", "True", "Suspended", message)
    elif conditions.get("Suspended") is not None:
        conditions.set("Suspended", "False", "Resumed")


def _scheduled(conditions: _Conditions, seen: Observation, placement: Placement) -> None:
    before = conditions.get("Scheduled")
    if not placement.feasible:
        if before is not None and before.reason == GIVEN_BACK and not seen.live:
            return
        reason = "NoMatchingNodes" if placement.no_match else "WaitingForRoom"
        conditions.set("Scheduled", "False", reason, placement.message)
    elif placement.message:
        conditions.set("Scheduled", "True", "FewerThanMaximum", placement.message)
    else:
        conditions.set("Scheduled", "True", "Placed", "there is room for all workers that were asked for")


def _why_not_running(seen: Observation, placement: Placement | None) -> tuple[str, str]:
    if seen.spec.suspend:
        return "Suspended", ""
    if seen.blocked:
        return "PodsRefused", seen.blocked
    live = seen.live
    if not live:
        if placement is not None and not placement.feasible:
            return ("NoMatchingNodes" if placement.no_match else "WaitingForRoom"), placement.message
        return "NoWorkers", "no worker exists yet"
    stuck = next((pod for pod in live if pod.stuck), None)
    if stuck is not None:
        return "WorkersStuck", f"worker {stuck.worker_id}: {stuck.stuck}"
    if seen.view is not None and seen.view.phase == "Recovering":
        return "Recovering", "fewer workers than the minimum are left; the others are awaited"
    homeless = next((pod for pod in live if pod.node is None and pod.message), None)
    if homeless is not None:
        return "WaitingForWorkers", f"worker {homeless.worker_id} has no node: {homeless.message}"
    connected, devices = sum(seen.connected(pod) for pod in live), sum(pod.devices for pod in live)
    return "WaitingForWorkers", f"{connected} of {devices} workers connected"


def _plan_applied(conditions: _Conditions, view: JobView | None) -> None:
    if view is None or view.plan is None:
        return
    if view.unacked:
        names = ", ".join(view.unacked[:MAX_UNACKED])
        text = f"plan {view.plan.version} is not yet run by {names}"
        conditions.set("PlanApplied", "False", "Pending", text)
    else:
        conditions.set("PlanApplied", "True", "Applied", f"all workers run plan {view.plan.version}")


def _phase(conditions: _Conditions, seen: Observation) -> Phase:
    def true(kind: ConditionType) -> bool:
        condition = conditions.get(kind)
        return condition is not None and condition.status == "True"

    if true("Succeeded"):
        return "Succeeded"
    if true("Failed"):
        return "Failed"
    if seen.spec.suspend:
        leaving = any(pod.live for pod in seen.pods)
        return seen.status.phase if leaving else "Suspended"
    if true("Running"):
        return "Running"
    return "Starting" if seen.live else "Pending"


def _cause(conditions: _Conditions, phase: Phase) -> Condition | None:
    """The condition that explains the phase."""
    kinds: dict[Phase, ConditionType] = {"Succeeded": "Succeeded", "Failed": "Failed", "Suspended": "Suspended"}
    return conditions.get(kinds.get(phase, "Running"))


def _ready(seen: Observation, pod: PodView) -> int:
    return sum(row.state in _READY for row in seen.rows.get(pod.uid, ()))


def refused(item: dict[str, Any], problem: str, *, running: bool) -> JobStatus:
    """The status of a job that cannot be read. One that has workers keeps them; one that has none has failed."""
    status = JobStatus.read(item.get("status"))
    if status.finished:
        return status
    now = datetime.now(UTC)
    kinds: list[tuple[ConditionType, Flag]] = [("Validated", "False")]
    if not running:
        kinds += [("Running", "False"), ("Failed", "True")]
    made = {condition.type: condition for condition in status.conditions}
    for kind, flag in kinds:
        before = made.get(kind)
        made[kind] = Condition(
            type=kind,
            status=flag,
            reason="Invalid",
            message=problem[:2048],
            observed_generation=item["metadata"].get("generation", 0),
            last_transition_time=before.last_transition_time if before and before.status == flag else now,
        )
    update: dict[str, object] = {
        "conditions": sorted(made.values(), key=lambda condition: condition.type),
        "observed_generation": item["metadata"].get("generation", 0),
    }
    if not running:
        update |= {"phase": "Failed", "reason": "Invalid", "message": problem[:2048], "completion_time": now}
    return status.model_copy(update=update)
