"""The level-based loop: observe, decide, act, one job at a time per key.

A pass starts from what is, not from what happened, so it does not matter which event woke it, whether events were
missed, or which operator made the pass before. A job whose pass fails is tried again later and later, and never stops
another job: every error ends at the key that it belongs to.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

from rex_operator.api import InvalidJob, RexJob
from rex_operator.controller.act import Actor
from rex_operator.controller.decide import decide
from rex_operator.controller.kube import REXJOBS, Kube, KubeError, Object
from rex_operator.controller.memory import recall
from rex_operator.controller.metrics import PASS_SECONDS, PASSES
from rex_operator.controller.names import Owner
from rex_operator.controller.observation import Decision, Observation
from rex_operator.controller.observe import Memory, Observer
from rex_operator.controller.picture import refused
from rex_operator.controller.queue import Key, WorkQueue
from rex_operator.controller.runtime import JobRuntime, Runtimes
from rex_operator.controller.search import SearchPool
from rex_operator.controller.storyteller import Storyteller

logger = logging.getLogger(__name__)

TRAINING_S = 15.0
RESYNC_S = 60.0
PASS_LIMIT_S = 120.0
GONE_S = 0.5


class Reconciler:
    """Runs the passes."""

    def __init__(
        self,
        kube: Kube,
        queue: WorkQueue,
        observer: Observer,
        actor: Actor,
        runtimes: Runtimes,
        searches: SearchPool,
        stories: Storyteller,
    ) -> None:
        self._kube, self._queue, self._observer, self._actor = kube, queue, observer, actor
        self._runtimes, self._searches, self._stories = runtimes, searches, stories
        self._memories: dict[Key, Memory] = {}
        self._placing = asyncio.Lock()
        self.waiting: set[Key] = set()
        """Jobs that would take more workers than there is room for."""

    async def work(self) -> None:
        """Make passes for ever."""
        while True:
            key = await self._queue.get()
            try:
                async with asyncio.timeout(PASS_LIMIT_S):
                    with PASS_SECONDS.time():
                        again = await self.reconcile(key)
            except KubeError as error:
                if error.status == 404:  # it went while we looked: the next pass finds out whether for good
                    self._queue.done(key)
                    self._queue.add_after(key, GONE_S)
                    continue
                PASSES.labels("error").inc()
                level = logging.INFO if error.temporary else logging.WARNING
                delay = self._queue.failed(key)
                logger.log(level, "Pass over RexJob %s stopped, trying again in %.1f s: %s", key, delay, error)
            except Exception:
                PASSES.labels("bug").inc()
                delay = self._queue.failed(key)
                logger.exception("Pass over RexJob %s failed, trying again in %.1f s", key, delay)
            else:
                PASSES.labels("done").inc()
                self._queue.done(key)
                if again is not None:
                    self._queue.add_after(key, again)

    def wake_waiting(self) -> None:
        """Something became free or appeared: let all jobs look again that wait for room."""
        for key in self.waiting:
            self._queue.add(key)

    async def reconcile(self, key: Key) -> float | None:
        """One pass; returns in how many seconds the next is due even if nothing happens. Raises ``KubeError``."""
        item = await self._kube.get(REXJOBS, key.namespace, key.name)
        if item is None or "deletionTimestamp" in item["metadata"]:
            self._forget(key)
            return None
        owner = Owner(key.namespace, key.name, item["metadata"]["uid"])
        memory = self._memories.get(key)
        if memory is None or memory.uid != owner.uid:
            self._runtimes.drop(key)
            memory = self._memories[key] = Memory(owner.uid)
        try:
            job = RexJob.from_manifest(item)
        except InvalidJob as error:
            return await self._refuse(item, owner, memory, error)
        return await self._pass(key, item, owner, job, memory)

    async def _pass(self, key: Key, item: Object, owner: Owner, job: RexJob, memory: Memory) -> float | None:
        runtime = await self._runtime(key, item, owner, job)
        if runtime is not None and memory.spec_generation != job.metadata.generation:
            runtime.set_spec(job.spec)
            memory.spec_generation = job.metadata.generation
        async with AsyncExitStack() as stack:
            workers = sum(pod.devices for pod in self._observer.job_pods(owner))
            if workers < job.spec.workers.max or job.spec.suspend:
                # Two jobs must not count on the same device: from looking to creating is one step.
                await stack.enter_async_context(self._placing)
            if runtime is not None:
                self._actor.tell_gone(self._observer.job_pods(owner), runtime)
            seen = await self._observer.observe(item, owner, job.spec, runtime, memory)
            decision = decide(seen)
            held_back = await self._actor.write_status(item, owner, decision.status.dump(), memory)
            self._stories.tell(seen, decision, memory)
            if runtime is not None:
                self._actor.tell_coordinator(decision, runtime)
            if decision.delete_job:
                await self._actor.delete_job(owner)
                return None
            memory.blocked = "" if decision.create else memory.blocked
            await self._actor.change_pods(seen, decision, memory)
        self._note(key, seen, decision, memory, runtime)
        return _next(decision, runtime, held_back)

    async def _runtime(self, key: Key, item: Object, owner: Owner, job: RexJob) -> JobRuntime | None:
        """The job's coordinator, started when this operator sees the job for the first time."""
        runtime = self._runtimes.get(key)
        resumed = runtime is not None and not job.spec.suspend and runtime.coordinator.stopping is not None
        if runtime is not None and resumed:
            await runtime.keeper.write()
            self._runtimes.drop(key)  # a new coordinator goes on from the state of the one that was stopped
            runtime = None
        if runtime is not None or (item.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            return runtime
        saved = await recall(self._kube, owner)
        if resumed and saved is not None:
            saved = saved.alone()  # all were told to leave; a pod that is slow to go is a member of nothing
        return await self._runtimes.start(owner, job.spec, saved, self._kube, self._searches)

    async def _refuse(self, item: Object, owner: Owner, memory: Memory, error: InvalidJob) -> float | None:
        """A job that an older schema let in and that cannot be read: only this one stops."""
        pods = self._observer.job_pods(owner)
        status = refused(item, str(error), running=any(pod.live for pod in pods))
        await self._actor.write_status(item, owner, status.dump(), memory)
        self._stories.tell_refusal(owner, str(error))
        return None

    def _note(
        self, key: Key, seen: Observation, decision: Decision, memory: Memory, runtime: JobRuntime | None
    ) -> None:
        present = self._observer.job_pods(seen.owner)
        known = {pod.uid for pod in seen.pods}
        # As this pass saw them, not as they are now: what changed meanwhile is news for the next pass.
        memory.lives = {pod.uid: pod for pod in seen.pods if pod.live}
        memory.lives |= {pod.uid: pod for pod in present if pod.uid not in known}
        memory.removed.intersection_update({pod.uid for pod in present})
        if decision.waiting and not decision.status.finished:
            self.waiting.add(key)
        else:
            self.waiting.discard(key)
        if runtime is not None and decision.status.finished and not any(not pod.ended for pod in present):
            self._runtimes.drop(key)

    def _forget(self, key: Key) -> None:
        self._runtimes.drop(key)
        self._memories.pop(key, None)
        self.waiting.discard(key)
        self._queue.forget(key)


def _next(decision: Decision, runtime: JobRuntime | None, held_back: float | None) -> float | None:
    if decision.status.finished:
        return decision.again_s
    regular = TRAINING_S if runtime is not None and decision.status.phase == "Running" else RESYNC_S
    return min(value for value in (regular, decision.again_s, held_back) if value is not None)
