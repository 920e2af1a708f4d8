"""What should happen to a job, from one picture of it: the pure middle of observe, decide, act.

Everything that is known of the job comes in as an ``Observation``; everything that should be done goes out as a
``Decision``. Deciding twice on the same picture gives the same answer, so a pass may be repeated, interrupted or made
by another operator. A finished job is finished: nothing but tidying up follows, whatever is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from rex_operator.controller.deadlines import RELEASE_PAUSE, overdue, paused_until, seconds_left
from rex_operator.controller.ending import end, outcome_of, tidy
from rex_operator.controller.ends import (
    account,
    avoided_nodes,
    not_before,
    noted,
    processes,
    unreachable,
    unreachable_entry,
)
from rex_operator.controller.observation import Decision, NewWorker, Observation, Outcome
from rex_operator.controller.picture import picture
from rex_operator.controller.pods import PodView
from rex_operator.jobs import Target
from rex_operator.placement import Live, Placement, place

KEPT_FAILED_PODS = 5
DRAIN_LIMIT = timedelta(minutes=2)
RECHECK_S = 15.0


def decide(seen: Observation) -> Decision:
    """Decide about one job. Pure."""
    if seen.status.finished:
        return tidy(seen)
    if seen.invalid:
        return end(seen, Outcome(False, "Invalid", seen.invalid))
    out_of_reach = unreachable(seen.pods, seen.rows)
    ended = [*processes(seen.pods, seen.rows), *seen.pods]
    gone = [*seen.vanished, *(unreachable_entry(pod, seen.now) for pod in out_of_reach)]
    verdict = account(seen.status, seen.spec.failure, ended, gone, seen.now)
    pods = [replace(pod, deleting=True) if pod in out_of_reach else pod for pod in seen.pods]
    seen = replace(seen, status=verdict.status, pods=pods)
    outcome = outcome_of(seen, verdict.fatal)
    go_on = _suspend if seen.spec.suspend else _run
    made = go_on(seen) if outcome is None else end(seen, outcome)
    delete = (*made.delete, *out_of_reach)
    return replace(made, delete=delete, failures=verdict.new, note_exits=tuple(noted(seen.pods, seen.rows)))


def _suspend(seen: Observation) -> Decision:
    """All workers save and leave; what does not leave in time is removed. The job holds nothing then."""
    present = [pod for pod in seen.pods if not pod.deleting]
    leaving = [pod for pod in present if pod.live]
    stopped = seen.view is None or seen.view.phase in ("Stopped", "Pending")
    overstayed = [pod for pod in leaving if _overstays(seen, pod)]
    return Decision(
        status=picture(seen),
        targets=_targets(seen, leaving),
        stop="spec.suspend is set",
        drain=tuple(pod for pod in leaving if pod.draining_since is None and not stopped),
        delete=tuple([pod for pod in present if pod.ended] + (leaving if stopped else overstayed)),
        again_s=5.0 if present else None,
    )


def _run(seen: Observation) -> Decision:
    live = seen.live
    finishing = any(pod.succeeded and pod.draining_since is None and not pod.deleting for pod in seen.pods)
    placement = Placement({}) if finishing else _place(seen, live)
    late = overdue(seen, placement)
    if isinstance(late, Outcome):
        return end(seen, late)
    if late:
        status = picture(seen, placement, given_back=late)
        return Decision(status=status, delete=tuple(live), waiting=True, again_s=RELEASE_PAUSE.total_seconds())

    waiting = bool(placement.message) or not placement.feasible or bool(seen.blocked)
    hold_s = (max(not_before(seen.status, seen.now), paused_until(seen)) - seen.now).total_seconds()
    appointments = [RECHECK_S] if waiting else []
    left = seconds_left(seen)
    if left is not None and left > 0:
        appointments.append(left)
    create: tuple[NewWorker, ...] = ()
    if placement.add and hold_s > 0:
        appointments.append(hold_s)
    elif placement.add:
        create = _new_workers(seen.pods, placement.add)
    dropped = [pod for pod in live if pod.worker_id in placement.drop] or _maimed(seen, live)
    draining = any(pod.draining_since is not None for pod in seen.pods)
    appointments += [DRAIN_LIMIT.total_seconds()] if dropped or draining else []
    appointments += [RECHECK_S] if any(row.state == "lost" for rows in seen.rows.values() for row in rows) else []
    return Decision(
        status=picture(seen, placement),
        targets=_targets(seen, [pod for pod in live if pod not in dropped]),
        create=create,
        all_or_nothing=bool(create) and not seen.minimum_met,
        avoid_nodes=frozenset(avoided_nodes(seen.status, seen.now)),
        drain=tuple(dropped),
        delete=_leftovers(seen),
        waiting=waiting,
        again_s=max(0.2, min(appointments)) if appointments else None,
    )


def _maimed(seen: Observation, live: Sequence[PodView]) -> list[PodView]:
    """A pod with a worker that nobody can reach, while its others train: they leave, if the job can do without them.

    Then the pod can be replaced; otherwise the device of that worker lies idle, which is better than no training.
    """
    for pod in live:
        if any(row.given_up for row in seen.rows.get(pod.uid, ())):
            rest = replace(seen, pods=[other for other in seen.pods if other is not pod])
            return [pod] if rest.minimum_met else []
    return []


def _place(seen: Observation, live: Sequence[PodView]) -> Placement:
    doomed = {node.name for node in seen.nodes or () if node.draining}
    workers = []
    for pod in live:
        rows = seen.rows.get(pod.uid, ())
        speeds = [row.local_batch / row.compute_s for row in rows if row.local_batch and row.compute_s]
        ranks = [row.rank for row in rows if row.rank is not None]
        speed, rank = sum(speeds) / len(speeds) if speeds else None, min(ranks, default=None)
        workers.append(Live(pod.worker_id, pod.pool, pod.node in doomed, speed, rank, pod.devices))
    avoided = avoided_nodes(seen.status, seen.now)
    nodes = None if seen.nodes is None else [node for node in seen.nodes if node.name not in avoided]
    most = min(seen.spec.workers.max, seen.spec.batch.most_workers)
    return place(seen.pools, seen.spec.workers.min, most, workers, nodes, seen.reserved)


def _new_workers(pods: Sequence[PodView], add: Mapping[str, int]) -> tuple[NewWorker, ...]:
    """Name new workers: the lowest free numbers, each with an attempt that no pod of that name has."""
    taken = {pod.worker_id for pod in pods if pod.live}
    attempts: dict[str, int] = {}
    for pod in pods:
        attempts[pod.worker_id] = max(attempts.get(pod.worker_id, -1), pod.attempt)
    made: list[NewWorker] = []
    number = 0
    for pool, count in add.items():
        for _ in range(count):
            while f"w{number}" in taken:
                number += 1
            made.append(NewWorker(f"w{number}", pool, attempts.get(f"w{number}", -1) + 1))
            number += 1
    return tuple(made)


def _targets(seen: Observation, live: Sequence[PodView]) -> dict[str, Target]:
    """Who trains or should: live workers, and those that ended well, whose last words may still be on their way."""
    pools = {pool.name: pool for pool in seen.spec.pools}
    done = [pod for pod in seen.pods if pod.succeeded and pod.draining_since is None and not pod.deleting]
    return {
        worker_id: Target(incarnation, pod.pool, pod.device, pools[pod.pool].max_local_batch)
        for pod in [*done, *live]
        if pod.pool in pools
        for worker_id, incarnation in pod.workers.items()
    }


def _overstays(seen: Observation, pod: PodView) -> bool:
    return pod.draining_since is not None and seen.now - pod.draining_since > DRAIN_LIMIT


def _leftovers(seen: Observation) -> tuple[PodView, ...]:
    """Drained pods once they have ended or overstayed, and all but the newest of those that failed."""
    present = [pod for pod in seen.pods if not pod.deleting]
    drained = [pod for pod in present if pod.draining_since is not None and (pod.ended or _overstays(seen, pod))]
    counted = {failure.uid for failure in seen.status.failures}
    failed = [pod for pod in present if pod.ended and pod.draining_since is None and pod.uid in counted]
    failed.sort(key=lambda pod: pod.created)
    return tuple(drained + failed[: max(0, len(failed) - KEPT_FAILED_PODS)])
