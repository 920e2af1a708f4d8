"""Worker pods as decisions need them: one frozen view per pod, read from what the API server holds.

Whether a worker has ended is told by its container named ``trainer``: a sidecar may keep the pod alive for ever. Why it
ended is told by several fields that come at different times: the container's exit code, the pod's reason, and the
``DisruptionTarget`` condition, which says that the cluster and not the program ended it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rex_operator.controller.names import (
    ATTEMPT_ANNOTATION,
    COUNTED_ANNOTATION,
    DEVICE_ANNOTATION,
    DEVICES_ANNOTATION,
    DRAINING_ANNOTATION,
    POOL_LABEL,
    TRAINER,
    WORKER_LABEL,
)
from rex_worker.pod import MAX_DEVICES, life_name, worker_names

STUCK_REASONS = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
"""A container that waits for one of these does not start unless somebody mends something."""


@dataclass(frozen=True)
class PodView:
    """One life of one worker, or of the workers of a pod with several devices."""

    name: str
    uid: str
    worker_id: str
    """Of several workers, the stem of their ids."""
    pool: str
    created: datetime
    attempt: int = 0
    device: str = ""
    devices: int = 1
    """Devices, and so workers."""
    counted: tuple[int, ...] = ()
    """How many ends of its processes are counted, by device."""
    node: str | None = None
    deleting: bool = False
    draining_since: datetime | None = None
    ended: bool = False
    exit_code: int | None = None
    reasons: tuple[str, ...] = ()
    """Why it ended or cannot start, most telling first."""
    message: str = ""
    started: bool = False
    """The trainer container runs or ran."""
    stuck: str = ""
    """Why the container does not start, when only a person can mend it."""

    @property
    def workers(self) -> dict[str, str]:
        """The ids of its workers, each with its first life."""
        names = worker_names(self.worker_id, self.devices)
        return {name: life_name(self.uid, device, self.devices) for device, name in enumerate(names)}

    @property
    def live(self) -> bool:
        """Counts as a worker: not ended and not on its way out."""
        return not (self.ended or self.deleting)

    @property
    def succeeded(self) -> bool:
        """The trainer ended by itself with exit code 0."""
        return self.ended and self.exit_code == 0


def read_pod(pod: Mapping[str, Any]) -> PodView:
    """The view of a pod that REX made. Raises ``KeyError`` on a pod without REX's labels."""
    meta, status = pod["metadata"], pod.get("status", {})
    annotations = meta.get("annotations", {})
    trainer: dict[str, Any] = next((c for c in status.get("containerStatuses", []) if c.get("name") == TRAINER), {})
    state = trainer.get("state", {})
    terminated, waiting = state.get("terminated"), state.get("waiting") or {}
    ended = terminated is not None or status.get("phase") in ("Failed", "Succeeded")
    exit_code = terminated.get("exitCode") if terminated else 0 if status.get("phase") == "Succeeded" else None
    draining = annotations.get(DRAINING_ANNOTATION)
    return PodView(
        name=meta["name"],
        uid=meta["uid"],
        worker_id=meta["labels"][WORKER_LABEL],
        pool=meta["labels"][POOL_LABEL],
        created=datetime.fromisoformat(meta["creationTimestamp"]),
        attempt=int(annotations.get(ATTEMPT_ANNOTATION, 0)),
        device=annotations.get(DEVICE_ANNOTATION, ""),
        devices=devices_of(pod),
        counted=tuple(_count(text) for text in annotations.get(COUNTED_ANNOTATION, "").split(",")),
        node=pod.get("spec", {}).get("nodeName"),
        deleting="deletionTimestamp" in meta,
        draining_since=datetime.fromisoformat(draining) if draining else None,
        ended=ended,
        exit_code=exit_code,
        reasons=_reasons(status, terminated) if ended or "deletionTimestamp" in meta else (),
        message=_message(status, terminated),
        started=bool(state.get("running") or terminated),
        stuck=_stuck(waiting),
    )


def devices_of(pod: Mapping[str, Any]) -> int:
    """How many devices, and so workers, the pod was made with; who may edit pods may write anything there."""
    text = pod["metadata"].get("annotations", {}).get(DEVICES_ANNOTATION, "1")
    return max(1, min(MAX_DEVICES, _count(text)))


def _count(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) <= 4 else 0


def _reasons(status: Mapping[str, Any], terminated: Mapping[str, Any] | None) -> tuple[str, ...]:
    found = [status.get("reason"), (terminated or {}).get("reason")]
    for condition in status.get("conditions", []):
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            found += ["DisruptionTarget", condition.get("reason")]
    return tuple(dict.fromkeys(reason for reason in found if reason and reason not in ("Error", "Completed")))


def _message(status: Mapping[str, Any], terminated: Mapping[str, Any] | None) -> str:
    unscheduled = next(
        (
            c.get("message", "")
            for c in status.get("conditions", [])
            if c.get("type") == "PodScheduled" and c.get("status") == "False"
        ),
        "",
    )
    text = (terminated or {}).get("message") or status.get("message") or unscheduled
    return str(text)[:512]


def _stuck(waiting: Mapping[str, Any]) -> str:
    reason = waiting.get("reason", "")
    return f"{reason}: {waiting.get('message', '')}"[:512] if reason in STUCK_REASONS else ""
