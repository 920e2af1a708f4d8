"""How a job ends, and what is tidied up afterwards. The end is final: nothing is ever made again for such a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from rex_operator.controller.observation import Decision, Observation, Outcome
from rex_operator.controller.picture import picture
from rex_operator.controller.pods import PodView

LAST_WORDS = timedelta(seconds=10)
"""Workers that were told to stop may still be writing; they get this long before they are removed."""


def outcome_of(seen: Observation, fatal: str) -> Outcome | None:
    """Whether the job is over, and how; ``fatal`` is what the count of restarts says."""
    if seen.ended is not None:
        return Outcome(seen.ended.success, seen.ended.reason, seen.ended.message)
    if fatal:
        return Outcome(False, "WorkersFailed", fatal)
    limit, start = seen.spec.active_deadline_seconds, seen.status.start_time
    if limit is not None and start is not None and seen.now - start >= timedelta(seconds=limit):
        return Outcome(False, "DeadlineExceeded", f"the job ran longer than activeDeadlineSeconds ({limit})")
    return None if seen.spec.suspend else _all_done(seen)


def end(seen: Observation, outcome: Outcome) -> Decision:
    """The decision that writes the end."""
    status = seen.status.model_copy(update={"completion_time": seen.now})
    return Decision(status=picture(replace(seen, status=status), outcome=outcome), outcome=outcome, again_s=1.0)


def tidy(seen: Observation) -> Decision:
    """After the end: remove pods as ``cleanPodPolicy`` says, and in time the job itself."""
    policy = seen.spec.clean_pod_policy
    present = [pod for pod in seen.pods if not pod.deleting]
    running = [pod for pod in present if not pod.ended]
    since = seen.status.completion_time or seen.now
    patience = (since + LAST_WORDS - seen.now).total_seconds()
    delete = [pod for pod in present if pod.ended] if policy == "All" else []
    appointments = []
    if policy in ("All", "Running") and running:
        if patience <= 0:
            delete += running
        else:
            appointments.append(patience)
    ttl = seen.spec.ttl_seconds_after_finished
    left = None if ttl is None else (since + timedelta(seconds=ttl) - seen.now).total_seconds()
    if left is not None:
        appointments.append(left)
    return Decision(
        status=picture(seen),
        delete=tuple(delete),
        delete_job=left is not None and left <= 0,
        again_s=max(0.1, min(appointments)) if appointments else None,
    )


def _all_done(seen: Observation) -> Outcome | None:
    """What it means that pods ended by themselves with success when nobody heard their last words."""
    done = [pod for pod in seen.pods if pod.succeeded and pod.draining_since is None and not pod.deleting]
    never_trained = seen.status.generation == 0 and (seen.view is None or seen.view.generation == 0)
    stranger = next((pod for pod in done if not seen.connected(pod)), None)
    if never_trained and stranger is not None:
        text = f"the script of worker {stranger.worker_id} ended without calling rex.init(): see examples/"
        return Outcome(False, "NeverConnected", text)
    if not done or never_trained or any(pod.live for pod in seen.pods):
        return None
    counted = {failure.uid for failure in seen.status.failures}
    if any(pod.uid in counted and pod.attempt == _last_attempt(seen.pods, pod) for pod in seen.pods):
        return None  # a member failed at the very end: it is replaced and resumes from the checkpoint
    return Outcome(True, "Finished", "all workers ran the script to its end")


def _last_attempt(pods: Sequence[PodView], like: PodView) -> int:
    return max(pod.attempt for pod in pods if pod.worker_id == like.worker_id)
