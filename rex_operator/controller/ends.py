"""Ends of workers' lives, each judged once.

A failed pod is seen in every pass until it is removed, and an operator may be replaced between counting and acting. So
what was counted is written, with the count, in one status update: ``status.failures`` names the lives that are in
``status.restarts``. A life that is listed there is never charged again, whoever looks.

A process that was started again within its pod tells how the one before ended for as long as it lives, longer than the
list may remember; so the pod notes, after the status was written, how many of them are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from rex_operator.api import JobStatus
from rex_operator.api.spec import Failure
from rex_operator.api.status import MAX_FAILURES, WorkerFailure
from rex_operator.controller.pods import PodView
from rex_operator.jobs import WorkerRow
from rex_operator.jobs.failures import judge, restart_delay
from rex_worker.pod import life_name, read_life

REFUSED_BY_NODE = frozenset(
    {"UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory", "OutOfpods", "NodeAffinity", "TopologyAffinityError"}
)
"""The kubelet would not take the pod: another try on the same node fares no better for a while."""

AVOID_FOR = timedelta(minutes=5)
STREAK = timedelta(minutes=10)


@dataclass(frozen=True)
class Verdict:
    """What follows from the ends that were not yet counted."""

    status: JobStatus
    new: tuple[WorkerFailure, ...] = ()
    fatal: str = ""
    """Why the job has failed; empty when it goes on."""


def processes(pods: Iterable[PodView], rows: Mapping[str, Sequence[WorkerRow]]) -> list[PodView]:
    """The ends of processes that were started again in their pods and are not noted there, each as a life that ended.

    ``rows`` are the workers by the UID of their pod.
    """
    return [
        replace(
            pod,
            worker_id=row.worker_id,
            uid=life_name(pod.uid, device, pod.devices, life),
            ended=True,
            exit_code=code,
            reasons=(),
            message="its process was started again",
            deleting=False,
            draining_since=None,
        )
        for pod in pods
        for row in rows.get(pod.uid, ())
        for device in (read_life(row.incarnation).device,)
        for life, code in enumerate(row.exits)
        if device is not None and life >= counted(pod, device)
    ]


def noted(pods: Iterable[PodView], rows: Mapping[str, Sequence[WorkerRow]]) -> list[tuple[PodView, tuple[int, ...]]]:
    """Pods that have more ends of processes to note, with how many, by device."""
    found = []
    for pod in pods:
        heard = [counted(pod, device) for device in range(pod.devices)]
        for row in rows.get(pod.uid, ()):
            device = read_life(row.incarnation).device
            if device is not None and device < pod.devices:
                heard[device] = max(heard[device], len(row.exits))
        if any(count > counted(pod, device) for device, count in enumerate(heard)) and not pod.deleting:
            found.append((pod, tuple(heard)))
    return found


def counted(pod: PodView, device: int) -> int:
    """How many ends of the device's processes the pod says are counted."""
    return pod.counted[device] if device < len(pod.counted) else 0


def account(
    status: JobStatus, failure: Failure, pods: Iterable[PodView], vanished: Iterable[WorkerFailure], now: datetime
) -> Verdict:
    """Judge the ends that ``status`` does not list yet, and list them.

    Args:
        status: what was counted before.
        failure: the user's budget and rules.
        pods: the job's pods; those that ended by themselves and without success are judged, not those that are deleted.
        vanished: lives that are gone with no trace of a cause; never charged.
        now: the time to write beside them.
    """
    known = {entry.uid for entry in status.failures}
    charged, uncharged = status.restarts.charged, status.restarts.uncharged
    new: list[WorkerFailure] = []
    fatal = ""
    for entry in vanished:
        if entry.uid not in known:
            new.append(entry)
            uncharged += 1
    for pod in pods:
        if pod.uid in known or not pod.ended or pod.succeeded or pod.deleting or pod.draining_since is not None:
            continue
        refused = bool(REFUSED_BY_NODE.intersection(pod.reasons))
        reasons = (*pod.reasons, "UnexpectedAdmissionError") if refused else pod.reasons
        verdict = judge(failure, charged, pod.exit_code, reasons)
        known.add(pod.uid)
        charged += verdict.charged and not verdict.fail
        uncharged += not verdict.charged
        fatal = fatal or (f"worker {pod.worker_id}: {verdict.message}" if verdict.fail else "")
        text = f"{verdict.message}: {pod.message}" if pod.message else verdict.message
        new.append(_entry(pod, text, verdict.charged, now))
    if not new:
        return Verdict(status)
    restarts = status.restarts.model_copy(update={"charged": charged, "uncharged": uncharged})
    kept = keep_newest([*status.failures, *new], {pod.uid for pod in pods})
    return Verdict(status.model_copy(update={"restarts": restarts, "failures": kept}), tuple(new), fatal)


def keep_newest(failures: Sequence[WorkerFailure], present: set[str]) -> list[WorkerFailure]:
    """Shorten the list to its bound; entries whose pod is still there go last, they would be counted again."""
    surplus = len(failures) - MAX_FAILURES
    if surplus <= 0:
        return list(failures)
    order = sorted(range(len(failures)), key=lambda i: (failures[i].uid in present, i))
    dropped = set(order[:surplus])
    return [entry for i, entry in enumerate(failures) if i not in dropped]


def not_before(status: JobStatus, now: datetime) -> datetime:
    """When the next worker may be started: later after each failure that was not the cluster's own doing."""
    recent = [f for f in status.failures if now - f.time < STREAK and (f.charged or f.reason in REFUSED_BY_NODE)]
    if not recent:
        return now
    return max(f.time for f in recent) + timedelta(seconds=restart_delay(len(recent)))


def avoided_nodes(status: JobStatus, now: datetime) -> set[str]:
    """Nodes whose kubelet has refused a pod of the job lately."""
    return {f.node for f in status.failures if f.node and f.reason in REFUSED_BY_NODE and now - f.time < AVOID_FOR}


def unreachable(pods: Iterable[PodView], rows: Mapping[str, Sequence[WorkerRow]]) -> list[PodView]:
    """Live pods of whose workers nothing was heard for so long that others should take their place."""
    return [pod for pod in pods if pod.live and rows.get(pod.uid) and all(row.given_up for row in rows[pod.uid])]


def unreachable_entry(pod: PodView, now: datetime) -> WorkerFailure:
    """The entry of a life that may go on where nobody can reach it; not charged."""
    message = "nothing is heard of it, though its pod runs; replaced, not charged"
    return _entry(replace(pod, reasons=("Unreachable",)), message, False, now)


def vanished_entry(pod: PodView, now: datetime) -> WorkerFailure:
    """The entry of a life that somebody else ended; not charged."""
    return _entry(
        replace(pod, reasons=pod.reasons or ("Deleted",)), "the pod was deleted; replaced, not charged", False, now
    )


def _entry(pod: PodView, message: str, charged: bool, now: datetime) -> WorkerFailure:
    return WorkerFailure(
        worker=pod.worker_id,
        pod=pod.name,
        uid=pod.uid,
        node=pod.node or "",
        reason=_reason(pod.reasons[0] if pod.reasons else "Error"),
        exit_code=pod.exit_code,
        message=message[:512],
        charged=charged,
        time=now,
    )


def _reason(text: str) -> str:
    kept = "".join(c for c in text if c.isalnum() or c == "_")[:128]
    return kept if kept[:1].isalpha() else "Error"
