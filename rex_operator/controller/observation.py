"""One picture of a job, and what should follow from it: the two ends of the pure middle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from rex_operator.api import JobStatus, RexJobSpec
from rex_operator.api.status import WorkerFailure
from rex_operator.controller.names import Owner
from rex_operator.controller.pods import PodView
from rex_operator.jobs import Ended, JobView, Target, WorkerRow
from rex_operator.placement import Demand, Node, PoolRequest
from rex_worker.pod import read_life


@dataclass(frozen=True)
class Observation:
    """Everything that is known of a job at one moment."""

    owner: Owner
    spec: RexJobSpec
    generation: int
    created: datetime
    status: JobStatus
    pods: Sequence[PodView]
    now: datetime
    view: JobView | None = None
    """The coordinator's; None before it was started."""
    ended: Ended | None = None
    """The coordinator's verdict on the whole job."""
    invalid: str = ""
    """Why the job can never run: the API server refuses its pods for good."""
    blocked: str = ""
    """Why its pods cannot be made at present, in the API server's words."""
    pools: Sequence[PoolRequest] = ()
    nodes: Sequence[Node] | None = None
    reserved: Sequence[Demand] = ()
    vanished: Sequence[WorkerFailure] = ()

    @property
    def live(self) -> list[PodView]:
        """Workers that exist and are not on their way out."""
        return [pod for pod in self.pods if pod.live and pod.draining_since is None]

    @cached_property
    def rows(self) -> Mapping[str, Sequence[WorkerRow]]:
        """What the coordinator knows of the workers, by the UID of their pod."""
        found: dict[str, list[WorkerRow]] = {}
        for row in self.view.workers if self.view else ():
            found.setdefault(read_life(row.incarnation).uid, []).append(row)
        return found

    def connected(self, pod: PodView) -> int:
        """How many of the pod's workers have opened the channel at some time."""
        return len({row.worker_id for row in self.rows.get(pod.uid, ()) if row.state != "starting"})

    @property
    def minimum_met(self) -> bool:
        """Whether the live workers satisfy ``workers.min`` and each pool's ``minWorkers``."""
        counts: Counter[str] = Counter()
        for pod in self.live:
            counts[pod.pool] += pod.devices
        enough = all(counts[pool.name] >= pool.min_workers for pool in self.spec.pools)
        return enough and counts.total() >= self.spec.workers.min


@dataclass(frozen=True)
class NewWorker:
    """A pod to make."""

    worker_id: str
    pool: str
    attempt: int


@dataclass(frozen=True)
class Outcome:
    """How a job ends, for good."""

    success: bool
    reason: str
    message: str


@dataclass(frozen=True)
class Decision:
    """What should be done, in this order: write the status, tell the coordinator, then change pods."""

    status: JobStatus
    targets: Mapping[str, Target] = field(default_factory=dict)
    stop: str = ""
    """Have all workers save and leave, for this reason; the job may go on later."""
    outcome: Outcome | None = None
    """The job has just ended; the coordinator is to know."""
    create: tuple[NewWorker, ...] = ()
    all_or_nothing: bool = False
    """If one of ``create`` cannot be made, none is to stay."""
    avoid_nodes: frozenset[str] = frozenset()
    drain: tuple[PodView, ...] = ()
    delete: tuple[PodView, ...] = ()
    delete_job: bool = False
    failures: tuple[WorkerFailure, ...] = ()
    """Newly counted ends, for events."""
    note_exits: tuple[tuple[PodView, tuple[int, ...]], ...] = ()
    """Pods whose processes ended and were started again, each with how many ends are now counted, by device."""
    waiting: bool = False
    """Would take more workers than there is room for: look again when something becomes free."""
    again_s: float | None = None
