"""Gathers one picture of a job: what the API server holds, what our watches have seen, what the coordinator knows.

Nothing is changed here, with one exception that changes nothing either: while a job has no workers, its pods are
created on trial (a dry run), so that the API server's own words about a bad template are known before a gang starts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from rex_operator.api import JobStatus, RexJobSpec
from rex_operator.api.status import WorkerFailure
from rex_operator.controller.capacity import Capacity, reservations
from rex_operator.controller.demand import pool_request
from rex_operator.controller.ends import vanished_entry
from rex_operator.controller.informer import Informer
from rex_operator.controller.kube import PODS, Kube, KubeError, Object
from rex_operator.controller.names import UID_LABEL, Owner
from rex_operator.controller.observation import Observation
from rex_operator.controller.pods import PodView, read_pod
from rex_operator.controller.runtime import JobRuntime
from rex_operator.controller.template import Built, InvalidTemplate, WorkerPod, build_pod
from rex_operator.placement import PoolRequest


@dataclass
class Memory:
    """What this process remembers of a job between passes; losing it costs nothing but a repeated check."""

    uid: str
    lives: dict[str, PodView] = field(default_factory=dict)
    """Workers as last seen, by UID."""
    removed: set[str] = field(default_factory=set)
    """Pods that we deleted ourselves."""
    accepted: int = -1
    """Generation of the job whose pods the API server accepted on trial."""
    blocked: str = ""
    """Why the last attempt to make something was refused."""
    children_for: tuple[int, int] | None = None
    """(generation, live workers) that the children were last applied for."""
    children_at: float = float("-inf")
    status_at: float = float("-inf")
    phase: str = ""
    spec_generation: int = -1


class Observer:
    """Makes observations."""

    def __init__(self, kube: Kube, pods: Iterable[Informer], capacity: Capacity, channel_url: str) -> None:
        self._kube, self._pods, self._capacity, self._url = kube, list(pods), capacity, channel_url

    def own_pods(self) -> list[Object]:
        """REX's pods, of all jobs."""
        return [pod for informer in self._pods for pod in informer]

    def find_pod(self, namespace: str, name: str) -> Object | None:
        """One of REX's pods."""
        return next((pod for informer in self._pods if (pod := informer.get(namespace, name))), None)

    def remember(self, pod: Object) -> None:
        """Take in what the API server answered to our own write of a pod."""
        for informer in self._pods:
            if informer.covers(pod["metadata"]["namespace"]):
                informer.remember(pod)

    def job_pods(self, owner: Owner) -> list[PodView]:
        """The job's pods, of this very job."""
        mine = [p for p in self.own_pods() if p["metadata"]["labels"].get(UID_LABEL) == owner.uid and owner.owns(p)]
        return sorted((read_pod(pod) for pod in mine), key=lambda pod: (pod.created, pod.name))

    async def observe(
        self, item: Object, owner: Owner, spec: RexJobSpec, runtime: JobRuntime | None, memory: Memory
    ) -> Observation:
        """The picture of one job. Raises ``KubeError`` when it cannot be had now."""
        meta = item["metadata"]
        seen = Observation(
            owner=owner,
            spec=spec,
            generation=meta.get("generation", 0),
            created=datetime.fromisoformat(meta["creationTimestamp"]),
            status=JobStatus.read(item.get("status")),
            pods=self.job_pods(owner),
            now=datetime.now(UTC),
            view=runtime.view() if runtime else None,
            ended=runtime.ended if runtime else None,
            blocked=memory.blocked,
        )
        seen = replace(seen, vanished=vanished(seen, memory))
        if seen.status.finished:
            return seen
        try:
            pools = [self._pool(owner, spec, index) for index in range(len(spec.pools))]
        except InvalidTemplate as error:
            return replace(seen, invalid=str(error))
        seen = await self._tried(seen, memory)
        wants_more = not spec.suspend and sum(pod.devices for pod in seen.live) < spec.workers.max
        ours = self.own_pods()
        nodes = await self._capacity.nodes(ours, exact=wants_more)
        return replace(seen, pools=pools, nodes=nodes, reserved=reservations(ours))

    def build(self, owner: Owner, spec: RexJobSpec, worker: WorkerPod) -> Built:
        """A worker's pod. Raises ``InvalidTemplate``."""
        return build_pod(owner, spec, worker, self._url)

    def _pool(self, owner: Owner, spec: RexJobSpec, index: int) -> PoolRequest:
        pool = spec.pools[index]
        return pool_request(pool, spec, self.build(owner, spec, WorkerPod("w0", pool, 0)).manifest["spec"])

    async def _tried(self, seen: Observation, memory: Memory) -> Observation:
        """Create the pods on trial, once per generation of the job, and again while they are refused."""
        if seen.live or seen.spec.suspend or (memory.accepted == seen.generation and not memory.blocked):
            return seen
        for pool in seen.spec.pools:
            manifest = self.build(seen.owner, seen.spec, WorkerPod("w0", pool, 0)).manifest
            manifest["metadata"]["name"] = f"{manifest['metadata']['name']}-trial"
            try:
                await self._kube.create(PODS, seen.owner.namespace, manifest, dry_run=True)
            except KubeError as error:
                if error.status in (400, 422):
                    return replace(seen, invalid=f"pool {pool.name}: {error.message}")
                if error.temporary:
                    raise
                memory.blocked = f"pool {pool.name}: {error.message}"
                return replace(seen, blocked=memory.blocked)
        memory.accepted, memory.blocked = seen.generation, ""
        return replace(seen, blocked="")


def vanished(seen: Observation, memory: Memory) -> list[WorkerFailure]:
    """Lives that somebody else ended: the pod is gone or going, and neither we nor the program did that."""
    present = {pod.uid: pod for pod in seen.pods}
    gone = []
    for uid, last in memory.lives.items():
        now = present.get(uid)
        left = now is None or now.deleting
        if left and uid not in memory.removed and last.draining_since is None and not last.ended:
            gone.append(vanished_entry(now or last, seen.now))
    return gone
