"""Carries out what was decided about a job. Each act may be repeated: what is done already is met as an answer.

The order matters. The status is written first, because it holds the count of restarts: a replacement that was made
before its predecessor was counted would be free of charge after a crash. Then the coordinator learns who should exist,
then pods change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime

from rex_operator.api import API_VERSION, KIND, RexJobSpec
from rex_operator.controller.children import children
from rex_operator.controller.events import Recorder
from rex_operator.controller.kube import PODS, REXJOBS, Kube, KubeError, Object
from rex_operator.controller.names import COUNTED_ANNOTATION, DRAINING_ANNOTATION, MANAGER, Owner
from rex_operator.controller.observation import Decision, NewWorker, Observation
from rex_operator.controller.observe import Memory, Observer
from rex_operator.controller.pods import PodView, read_pod
from rex_operator.controller.runtime import JobRuntime
from rex_operator.controller.template import WorkerPod
from rex_worker.pod import read_life

logger = logging.getLogger(__name__)

STATUS_PAUSE_S = 10.0
CHILDREN_EVERY_S = 600.0
AT_ONCE = 16
_FIGURES = ("plan", "progress", "spending", "decisions", "workers", "pools", "poolsSummary")
"""Parts of the status that change all the time; the rest is written as soon as it changes."""


class Actor:
    """Acts for all jobs."""

    def __init__(
        self, kube: Kube, observer: Observer, recorder: Recorder, ca: str, *, network_policy: bool = True
    ) -> None:
        self._kube, self._observer, self._recorder = kube, observer, recorder
        self._ca, self._network_policy = ca, network_policy

    async def write_status(self, item: Object, owner: Owner, status: Object, memory: Memory) -> float | None:
        """Write the status if it says something new; returns in how many seconds a held-back one may be written."""
        before = item.get("status") or {}
        if status == before:
            return None
        now = asyncio.get_running_loop().time()
        if _settled(before) == _settled(status) and now - memory.status_at < STATUS_PAUSE_S:
            return memory.status_at + STATUS_PAUSE_S - now
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": owner.name, "namespace": owner.namespace, "uid": owner.uid},
            "status": status,
        }
        await self._kube.apply(REXJOBS, owner.namespace, body, manager=MANAGER, subresource="status")
        memory.status_at = now
        return None

    def tell_gone(self, pods: Sequence[PodView], runtime: JobRuntime) -> None:
        """Tell the coordinator which of the workers that it knows are dead, those of its saved state included."""
        present = {pod.uid: pod for pod in pods}
        known = {(row.worker_id, row.incarnation) for row in runtime.view().workers}
        known |= {(worker_id, target.incarnation) for worker_id, target in runtime.targets.items()}
        by_pod: dict[str, list[tuple[str, str]]] = {}
        for worker_id, incarnation in sorted(known):
            by_pod.setdefault(read_life(incarnation).uid, []).append((worker_id, incarnation))
        for uid, lives in by_pod.items():
            pod = present.get(uid)
            if pod is None:
                runtime.gone(lives, "the pod is gone")
            elif pod.ended and not pod.succeeded:
                runtime.gone(lives, ", ".join(pod.reasons) or f"exit code {pod.exit_code}")
        runtime.forget_all_but([*present, *(incarnation for _, incarnation in known)])

    def tell_coordinator(self, decision: Decision, runtime: JobRuntime) -> None:
        """Hand over who should exist, and whether to stop."""
        if decision.outcome is not None and not decision.outcome.success and runtime.ended is None:
            runtime.fail(decision.outcome.reason, decision.outcome.message)
        runtime.set_targets(decision.targets)
        if decision.stop:
            runtime.stop_workers(decision.stop)

    async def change_pods(self, seen: Observation, decision: Decision, memory: Memory) -> None:
        """Drain, delete and create. Raises ``KubeError`` for what should be tried again."""
        owner = seen.owner
        for pod in decision.drain:
            await self._annotate(owner, pod, DRAINING_ANNOTATION, datetime.now(UTC).isoformat())
        for pod, counts in decision.note_exits:
            await self._annotate(owner, pod, COUNTED_ANNOTATION, ",".join(str(count) for count in counts))
        for pod in decision.delete:
            memory.removed.add(pod.uid)
            answer = await self._kube.delete(PODS, owner.namespace, pod.name, uid=pod.uid)
            if answer is not None and answer.get("kind") == "Pod":
                self._observer.remember(answer)
        wanted = len(seen.live) + len(decision.create) - len(decision.drain)
        if seen.live or decision.create:
            await self._ensure_children(seen, wanted, memory, now=bool(decision.create))
        if decision.create:
            await self._create(seen, decision, memory)

    async def delete_job(self, owner: Owner) -> None:
        """Delete the job itself; the garbage collector takes what it owns."""
        await self._kube.delete(REXJOBS, owner.namespace, owner.name, uid=owner.uid)

    async def _annotate(self, owner: Owner, pod: PodView, name: str, text: str) -> None:
        patch = {"metadata": {"uid": pod.uid, "annotations": {name: text}}}
        try:
            self._observer.remember(await self._kube.merge(PODS, owner.namespace, pod.name, patch))
        except KubeError as error:
            if error.status not in (404, 409):
                raise

    async def _ensure_children(self, seen: Observation, live: int, memory: Memory, *, now: bool) -> None:
        clock = asyncio.get_running_loop().time()
        fresh = memory.children_for == (seen.generation, live) and clock - memory.children_at < CHILDREN_EVERY_S
        if fresh and not now:
            return
        for resource, body in children(seen.owner, self._ca, live, network_policy=self._network_policy):
            await self._kube.apply(resource, seen.owner.namespace, body, manager=MANAGER)
        memory.children_for, memory.children_at = (seen.generation, live), clock

    async def _create(self, seen: Observation, decision: Decision, memory: Memory) -> None:
        room = asyncio.Semaphore(AT_ONCE)

        async def one(worker: NewWorker) -> Object | KubeError:
            async with room:
                try:
                    return await self._make(seen.owner, seen.spec, worker, decision)
                except KubeError as error:
                    return error

        results = await asyncio.gather(*(one(worker) for worker in decision.create))
        made = [result for result in results if not isinstance(result, KubeError)]
        errors = [result for result in results if isinstance(result, KubeError)]
        for pod in made:
            self._observer.remember(pod)
        if errors and decision.all_or_nothing:
            await self._take_back(seen.owner, made, memory)
            made = []
        if made:
            views = [read_pod(pod) for pod in made]
            ids = [worker_id for pod in views for worker_id in pod.workers]
            text = f"created {len(ids)} workers: {', '.join(ids[:8])}{', ...' if len(ids) > 8 else ''}"
            self._recorder.tell(seen.owner, "Normal", "WorkersCreated", text)
        for error in errors:
            if error.temporary:
                raise error
        if errors:
            memory.blocked = errors[0].message
            self._recorder.tell(seen.owner, "Warning", "PodsRefused", memory.blocked)

    async def _make(self, owner: Owner, spec: RexJobSpec, worker: NewWorker, decision: Decision) -> Object:
        pool = next(pool for pool in spec.pools if pool.name == worker.pool)
        built = self._observer.build(
            owner, spec, WorkerPod(worker.worker_id, pool, worker.attempt, decision.avoid_nodes)
        )
        for warning in built.warnings:
            self._recorder.tell(owner, "Warning", "TemplateChanged", warning)
        try:
            return await self._kube.create(PODS, owner.namespace, built.manifest)
        except KubeError as error:
            if error.status != 409:
                raise
            there = await self._kube.get(PODS, owner.namespace, built.manifest["metadata"]["name"])
            if there is not None and owner.owns(there):
                return there  # we made it before, and did not hear the answer
            raise

    async def _take_back(self, owner: Owner, made: Sequence[Object], memory: Memory) -> None:
        for pod in made:
            meta = pod["metadata"]
            memory.removed.add(meta["uid"])
            await self._kube.delete(PODS, owner.namespace, meta["name"], uid=meta["uid"])


def _settled(status: Object) -> Object:
    return {key: value for key, value in status.items() if key not in _FIGURES}
