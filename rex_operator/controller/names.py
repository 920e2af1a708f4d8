"""Names and labels of what a job owns.

Children are found by label and by owner, never by name alone, because a job that is deleted and made again under the
same name meets the remains of its namesake. Names are the same for the same observation, so that a repeated act meets
"already exists" instead of making a second child.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rex_operator.api import API_VERSION, KIND

MANAGER = "rex-operator"
JOB_LABEL = "rex.dev/job"
UID_LABEL = "rex.dev/job-uid"
WORKER_LABEL = "rex.dev/worker"
POOL_LABEL = "rex.dev/pool"
ATTEMPT_ANNOTATION = "rex.dev/attempt"
DRAINING_ANNOTATION = "rex.dev/draining"
DEVICE_ANNOTATION = "rex.dev/device"
DEVICES_ANNOTATION = "rex.dev/devices"
COUNTED_ANNOTATION = "rex.dev/counted-exits"
"""How many ends of processes were counted, by device; none of them is counted again while the pod is there."""

TRAINER = "trainer"


@dataclass(frozen=True)
class Owner:
    """The job as its children refer to it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def reference(self) -> dict[str, Any]:
        """The controller reference that lets the garbage collector clean up, operator or not."""
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }

    def labels(self) -> dict[str, str]:
        """Labels of every child."""
        return {"app.kubernetes.io/managed-by": MANAGER, JOB_LABEL: self.name, UID_LABEL: self.uid}

    def selector(self) -> str:
        """Selects just this job's workers."""
        return f"{UID_LABEL}={self.uid}"

    def metadata(self, name: str, **more: Any) -> dict[str, Any]:
        """Metadata of a child."""
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": self.labels(),
            "ownerReferences": [self.reference()],
            **more,
        }

    def owns(self, item: Mapping[str, Any]) -> bool:
        """Whether this very job (by UID) controls the object."""
        return controller_uid(item) == self.uid

    @property
    def service(self) -> str:
        """The headless Service; its name is the workers' subdomain."""
        return child_name(self.name)

    @property
    def state(self) -> str:
        """The ConfigMap with what the planner has learned."""
        return child_name(self.name, "-state")

    @property
    def trust(self) -> str:
        """The ConfigMap with the channel's CA certificate."""
        return child_name(self.name, "-ca")

    def pod(self, worker_id: str, attempt: int) -> str:
        """One life of one worker."""
        return f"{self.name}-{worker_id}-{attempt}"


def child_name(job: str, suffix: str = "") -> str:
    """``rex-JOB`` plus suffix within the 63 characters of a DNS label; what is cut off is replaced by a digest."""
    room = 63 - len(suffix)
    name = f"rex-{job}"
    if len(name) > room:
        digest = hashlib.sha256(job.encode()).hexdigest()[:8]
        name = f"{name[: room - 9].rstrip('-')}-{digest}"
    return name + suffix


def controller_uid(item: Mapping[str, Any]) -> str | None:
    """UID of the object's controlling owner."""
    for reference in item["metadata"].get("ownerReferences", []):
        if reference.get("controller"):
            return str(reference["uid"])
    return None
