"""The running side of jobs: one coordinator per job, and the channel's sessions that feed it.

A coordinator is pure; here its actions are carried out. Messages go out over the channel, states are written by the
keeper, searches run in the pool. Everything happens in one event loop, and each event is handed over at once and in
order; nothing here waits inside an event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from rex_operator.api import RexJobSpec
from rex_operator.channel import ChannelServer, Identity
from rex_operator.controller.kube import Kube
from rex_operator.controller.memory import Keeper
from rex_operator.controller.names import Owner
from rex_operator.controller.queue import Key
from rex_operator.controller.search import SearchPool
from rex_operator.controller.template import job_seed
from rex_operator.jobs import Action, Coordinator, Ended, JobView, RunSearch, Save, SavedState, Send, Target
from rex_operator.planning import SearchRequest
from rex_worker.protocol import Down, Hello, Up

logger = logging.getLogger(__name__)

TICK_S = 0.5

SendTo = Callable[[Identity, Down], bool]


class JobRuntime:
    """One job while this operator leads it."""

    def __init__(
        self,
        owner: Owner,
        spec: RexJobSpec,
        saved: SavedState | None,
        kube: Kube,
        searches: SearchPool,
        send: SendTo,
        changed: Callable[[], None],
    ) -> None:
        self.owner = owner
        self._send, self._searches, self._changed = send, searches, changed
        self._loop = asyncio.get_running_loop()
        rng = np.random.default_rng(job_seed(owner.uid))
        self.coordinator = Coordinator(str(owner), spec, rng, self._loop.time(), saved)
        self.keeper = Keeper(kube, owner, self.coordinator.saved)
        self.ended: Ended | None = None
        self.targets: dict[str, Target] = {}
        self._told_gone: set[str] = set()
        self._tasks = {self._loop.create_task(self.keeper.run(), name=f"keeper of {owner}")}
        self._shown: tuple[object, ...] = ()

    def view(self) -> JobView:
        """The job as its coordinator sees it."""
        return self.coordinator.view()

    def set_targets(self, targets: Mapping[str, Target]) -> None:
        """Say who exists or is being started."""
        self.targets = dict(targets)
        self._do(self.coordinator.set_target(targets, self._loop.time()))

    def set_spec(self, spec: RexJobSpec) -> None:
        """The user edited the job."""
        self._do(self.coordinator.set_spec(spec, self._loop.time()))

    def gone(self, lives: Iterable[tuple[str, str]], reason: str) -> None:
        """These lives (worker id, incarnation) are over, with their pod; saying so again changes nothing."""
        news = [life for life in lives if life[1] not in self._told_gone]
        if news:
            self._told_gone.update(incarnation for _, incarnation in news)
            self._do(self.coordinator.gone_together(news, reason, self._loop.time()))

    def forget_all_but(self, incarnations: Iterable[str]) -> None:
        """Bound the memory of lives that are over."""
        self._told_gone.intersection_update(incarnations)

    def stop_workers(self, reason: str) -> None:
        """Have all workers save and leave."""
        self._do(self.coordinator.stop(reason, self._loop.time()))

    def fail(self, reason: str, message: str) -> None:
        """The job has failed for a cause outside of the coordinator's sight: workers are told to stop."""
        self._do(self.coordinator.fail(reason, message, self._loop.time()))

    def opened(self, identity: Identity, hello: Hello) -> None:
        """A worker connected."""
        now = self._loop.time()
        self._do(self.coordinator.connected(identity.worker_id, identity.incarnation, hello, now))

    def received(self, identity: Identity, message: Up) -> None:
        """A worker said something."""
        now = self._loop.time()
        self._do(self.coordinator.message(identity.worker_id, identity.incarnation, message, now))

    def closed(self, identity: Identity) -> None:
        """A worker's session is over."""
        self._do(self.coordinator.disconnected(identity.worker_id, identity.incarnation, self._loop.time()))

    def tick(self) -> None:
        """Let time pass."""
        self._do(self.coordinator.tick(self._loop.time()))
        shown = self._summary()
        if shown != self._shown:
            self._shown = shown
            self._changed()

    def close(self) -> None:
        """Stop all activity; workers are told nothing and train on."""
        for task in self._tasks:
            task.cancel()

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    identity = Identity(str(self.owner), action.worker_id, action.incarnation)
                    self._send(identity, action.message)
                case Save():
                    self.keeper.save()
                case RunSearch():
                    self._spawn(self._search(action.request))
                case Ended():
                    self.ended = action
                    self._changed()

    async def _search(self, request: SearchRequest) -> None:
        result = await self._searches.run(request)
        self._do(self.coordinator.search_finished(request, result, self._loop.time()))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _summary(self) -> tuple[object, ...]:
        """What is worth a pass at once when it changes; progress alone is not."""
        view = self.view()
        version = view.plan.version if view.plan else 0
        states = tuple((row.worker_id, row.incarnation, row.state) for row in view.workers)
        return view.phase, view.generation, version, len(view.unacked), states, len(view.decisions)


class Runtimes:
    """All running jobs; the channel's handler."""

    def __init__(self, changed: Callable[[Key], None]) -> None:
        self._changed = changed
        self._jobs: dict[str, JobRuntime] = {}
        self._arrived = asyncio.Condition()
        self.server: ChannelServer | None = None

    def __iter__(self) -> Iterator[JobRuntime]:
        return iter(list(self._jobs.values()))

    def get(self, key: Key) -> JobRuntime | None:
        """The running job of that name."""
        return self._jobs.get(str(key))

    async def start(
        self, owner: Owner, spec: RexJobSpec, saved: SavedState | None, kube: Kube, searches: SearchPool
    ) -> JobRuntime:
        """Begin to run a job, in place of an earlier one of the same name."""
        key = Key(owner.namespace, owner.name)
        self.drop(key)
        runtime = JobRuntime(owner, spec, saved, kube, searches, self._push, lambda: self._changed(key))
        async with self._arrived:
            self._jobs[str(key)] = runtime
            self._arrived.notify_all()
        return runtime

    def drop(self, key: Key) -> None:
        """Run that job no more."""
        runtime = self._jobs.pop(str(key), None)
        if runtime is not None:
            runtime.close()

    async def wait_for(self, job: str, uid: str, seconds: float) -> bool:
        """Whether this very job runs here, at once or within that time: workers may be faster than our first pass."""

        def here() -> bool:
            runtime = self._jobs.get(job)
            return runtime is not None and runtime.owner.uid == uid

        try:
            async with asyncio.timeout(seconds), self._arrived:
                await self._arrived.wait_for(here)
                return True
        except TimeoutError:
            return False

    async def tick_forever(self) -> None:
        """Let time pass for all jobs; one that breaks is named and does not stop the others."""
        while True:
            for runtime in self:
                try:
                    runtime.tick()
                except Exception:
                    logger.exception("Coordinator of RexJob %s failed in a tick", runtime.owner)
            await asyncio.sleep(TICK_S)

    def opened(self, identity: Identity, hello: Hello) -> None:
        """A worker connected."""
        if runtime := self._jobs.get(identity.job):
            runtime.opened(identity, hello)

    def received(self, identity: Identity, message: Up) -> None:
        """A worker said something."""
        if runtime := self._jobs.get(identity.job):
            runtime.received(identity, message)

    def closed(self, identity: Identity) -> None:
        """A worker's session is over."""
        if runtime := self._jobs.get(identity.job):
            runtime.closed(identity)

    def _push(self, identity: Identity, message: Down) -> bool:
        return self.server is not None and self.server.send(identity, message)
