"""The coordinator of one run on this machine, and all that carries out what it decides.

Two shells run a job without a cluster: ``run`` starts the workers itself, ``standalone`` serves workers that a launcher
such as torchrun has started. What the coordinator asks for is the same in both: messages over the channel, searches in
a thread, saved state in the run's folder.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence

import numpy as np

from rex_operator.api import RexJob
from rex_operator.channel import ChannelServer, Identity
from rex_operator.jobs import Action, Coordinator, Ended, RunSearch, Save, SavedState, Send
from rex_operator.local.book import Book
from rex_operator.local.rundir import RunState
from rex_operator.planning import SearchRequest, SearchResult, run_search
from rex_worker.protocol import Membership, Plan

log = logging.getLogger(__name__)


def spec_text(job: RexJob) -> str:
    """The wish as canonical JSON without ``template``, to notice that it was changed."""
    return json.dumps(job.spec.model_dump(mode="json", by_alias=True, exclude={"template"}), sort_keys=True)


class Desk:
    """One coordinator at work. Its methods are called in the event loop."""

    def __init__(
        self,
        job: RexJob,
        name: str,
        seed: int,
        past: RunState | None,
        book: Book,
        server: ChannelServer,
        keep: Callable[[SavedState], None],
    ) -> None:
        """Take the job up where ``past`` left it; ``keep`` writes the state down."""
        self._name, self._book, self._server, self._keep = name, book, server, keep
        self._searches: set[asyncio.Task[None]] = set()
        self.ended: Ended | None = None
        self.over = asyncio.Event()
        """Set when the job has ended."""
        self.coordinator = self._make_coordinator(job, seed, past)

    def _make_coordinator(self, job: RexJob, seed: int, past: RunState | None) -> Coordinator:
        saved = past.saved if past is not None else None
        if saved is not None and past is not None and past.spec != spec_text(job):
            self._book.event("changed", "the manifest has changed since: training goes on, the planner starts anew")
            saved = saved.model_copy(update={"planner": None})
        if saved is not None:
            saved = saved.alone()
        coordinator = Coordinator(self._name, job.spec, np.random.default_rng(seed), time.monotonic(), saved)
        self._book.record.remember(coordinator.planner.decisions)
        return coordinator

    def apply(self, actions: Sequence[Action]) -> None:
        """Carry out what the coordinator has answered."""
        for action in actions:
            match action:
                case Send(worker_id, incarnation, message):
                    if isinstance(message, Membership):
                        self._book.record.membership(message)
                    elif isinstance(message, Plan):
                        self._book.record.plan(message)
                    self._server.send(Identity(self._name, worker_id, incarnation), message)
                case Save():
                    self._book.decisions(self.coordinator.planner.decisions)
                    self.save()
                case RunSearch(request):
                    task = asyncio.create_task(self._search(request))
                    self._searches.add(task)
                    task.add_done_callback(self._searches.discard)
                case Ended():
                    self.ended = action
                    self.over.set()

    def tick(self) -> None:
        """Let time pass, and write down where the job stands."""
        self.apply(self.coordinator.tick(time.monotonic()))
        self.note()

    def note(self) -> None:
        """Write down what was decided and where the job stands."""
        self._book.decisions(self.coordinator.planner.decisions)
        self._book.progress(self.coordinator.view())

    def save(self) -> None:
        """Keep what a later run needs to go on from here."""
        self._keep(self.coordinator.saved())

    async def _search(self, request: SearchRequest) -> None:
        result: SearchResult | None = None
        try:
            result = await asyncio.to_thread(run_search, request)
        except Exception as error:
            log.exception("search failed")
            self._book.event("search-failed", f"the search for a better batch failed: {error}")
        self.apply(self.coordinator.search_finished(request, result, time.monotonic()))
