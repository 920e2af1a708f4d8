"""Serves a gang of workers that a launcher has started: plans for them, and neither starts nor restarts anybody.

The same coordinator as in ``rex run``, over the same channel. How many workers there are is the launcher's doing, so
the group forms when all of them are there; after that any number of them may be lost, and the rest goes on for as long
as the launcher lets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from rex_operator.api import RexJob
from rex_operator.channel import PATH, ChannelServer, Identity, StaticTokens
from rex_operator.jobs import Action, Coordinator, JobView, SavedState, Target
from rex_operator.local.book import Book
from rex_operator.local.desk import Desk, spec_text
from rex_operator.local.errors import BadInput
from rex_operator.local.gangjob import POOL, Begin, ceilings, default_job, for_gang
from rex_operator.local.manifest import load_job
from rex_operator.local.rundir import RunDirectory, RunState, choose_directory
from rex_operator.planning import DecisionRecord
from rex_worker.protocol import MAX_WORKERS, Hello, Incarnation, Metrics, Up

log = logging.getLogger(__name__)

TICK_S = 0.25
LAST_WORDS_S = 10.0
"""How long after the end of the job workers may take to hang up."""
QUIET_S = 5.0
"""Rank 0 is gone and nobody has been connected for this long: nobody comes back."""
LOCK_PATIENCE_S = 20.0
"""The planner of the attempt before may hold the run's folder for a moment."""
HINT_AFTER_S = 60.0
FAILED = 3
"""Exit code for a job that has failed; 1 is a planner's own fault."""


class Order(BaseModel):
    """What rank 0 wants served."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    life: Incarnation
    """Incarnation of all workers of this attempt."""
    size: Annotated[int, Field(ge=1, le=MAX_WORKERS)]
    token: Annotated[str, Field(min_length=16, repr=False)]
    host: str
    """Where to listen."""
    encrypted: bool
    job_file: Path | None = None
    run_dir: Path | None = None


async def serve(order: Order, say: Callable[[dict[str, Any]], None]) -> int:
    """Serve the gang to its end and return the exit code. Raises ``BadInput`` before it has answered."""
    job = None if order.job_file is None else for_gang(load_job(order.job_file), order.size)
    name = job.metadata.name if job is not None else "standalone"
    with tempfile.TemporaryDirectory(prefix="rex-") as private:
        directory = await _hold(name, order.run_dir or Path(private, "run"))
        try:
            return await Gang(order, job, f"local/{name}", directory).run(say)
        finally:
            directory.close()


async def _hold(name: str, path: Path) -> RunDirectory:
    """Take hold of the run's folder; one that holds an ended run is moved aside."""
    past = RunDirectory(path).load()
    directory = choose_directory(name, path, fresh=past is not None and past.ended)
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            directory.open(checkpoints=False)
            return directory
        except BadInput:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)


class Gang:
    """The workers of one attempt of a launcher. Use once."""

    def __init__(self, order: Order, job: RexJob | None, name: str, directory: RunDirectory) -> None:
        self._order, self._job, self._name, self._directory = order, job, name, directory
        self._past = directory.load()
        self._began = time.monotonic()
        self._devices: dict[str, str] = {}
        self._connected: set[str] = set()
        self._early: list[Callable[[Coordinator, float], Sequence[Action]]] = []
        self._desk: Desk | None = None
        self._book = Book(directory, _Teller(), self._seconds)
        self._tokens = StaticTokens()
        for rank in range(order.size):
            self._tokens.allow(Identity(name, worker_id(rank), order.life), order.token)
        self._server = ChannelServer(self._tokens, self)

    async def run(self, say: Callable[[dict[str, Any]], None]) -> int:
        """Serve until the job has ended or everybody has left."""
        ca, context = _encryption(self._order)
        try:
            port = await self._server.start(self._order.host, 0, context)
        except OSError as error:
            raise BadInput(f"the planner cannot listen on {self._order.host}: {error}") from None
        scheme = "ws" if context is None else "wss"
        host = f"[{self._order.host}]" if ":" in self._order.host else self._order.host
        batch = self._job.spec.batch.initial if self._job is not None else 0  # else the script's own, once it says
        say({"url": f"{scheme}://{host}:{port}{PATH}", "ca": ca, "job": self._name, "batch": batch})
        try:
            lines = await _standard_input()
            begin = await lines.readline()
            if not begin:
                return 1
            self._begin(Begin.model_validate_json(begin))
            return await self._watch(lines)
        finally:
            await self._server.stop()
            self._book.close()

    def _seconds(self) -> float:
        return (self._past.elapsed_s if self._past is not None else 0.0) + time.monotonic() - self._began

    # --- the channel's news ----------------------------------------------------------------------------------------

    def opened(self, identity: Identity, hello: Hello) -> None:
        """A worker connected."""
        self._devices[identity.worker_id] = hello.device
        self._connected.add(identity.worker_id)
        self._tell(lambda brain, now: brain.connected(identity.worker_id, identity.incarnation, hello, now))
        self._name_targets()

    def received(self, identity: Identity, message: Up) -> None:
        """A worker said something."""
        if isinstance(message, Metrics):
            self._book.metrics(message)
        self._tell(lambda brain, now: brain.message(identity.worker_id, identity.incarnation, message, now))

    def closed(self, identity: Identity) -> None:
        """A worker's session is over."""
        self._connected.discard(identity.worker_id)
        self._tell(lambda brain, now: brain.disconnected(identity.worker_id, identity.incarnation, now))

    def _tell(self, event: Callable[[Coordinator, float], Sequence[Action]]) -> None:
        if self._desk is None:
            self._early.append(event)  # what a worker can say before it trains is little
        else:
            self._desk.apply(event(self._desk.coordinator, time.monotonic()))

    # --- the beginning ---------------------------------------------------------------------------------------------

    def _begin(self, begin: Begin) -> None:
        """Model and data are built: now the batch is known, and the coordinator can take up what was said so far."""
        self._job = self._job or default_job(begin, self._order.size)
        gathering = self._job.spec.workers.model_copy(update={"min": self._order.size})
        first = self._job.spec.model_copy(update={"workers": gathering})
        self._gathering = self._job.model_copy(update={"spec": first})
        self._desk = Desk(self._gathering, self._name, 0, self._past, self._book, self._server, self._keep)
        self._book.record.write(
            "start", job=self._job.metadata.name, devices=self._devices, resumed=self._past is not None
        )
        early, self._early = self._early, []
        for event in early:
            self._tell(event)
        self._name_targets()

    def _name_targets(self) -> None:
        """Name the workers once all are known; before, a group of some of them could form."""
        if self._desk is None or self._job is None or len(self._devices) < self._order.size:
            return
        limits = ceilings(self._job)
        targets = {
            name: Target(self._order.life, POOL, device, limits.get(device)) for name, device in self._devices.items()
        }
        self._tell(lambda brain, now: brain.set_target(targets, now))

    # --- time ------------------------------------------------------------------------------------------------------

    async def _watch(self, lines: asyncio.StreamReader) -> int:
        desk = self._desk
        assert desk is not None and self._job is not None  # noqa: S101
        gathering, hinted, quiet_since = True, False, time.monotonic()
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(desk.over.wait(), TICK_S)
            desk.tick()
            if desk.ended is not None:
                break
            now, view = time.monotonic(), desk.coordinator.view()
            if gathering and view.phase == "Running":
                gathering = False  # from now on the rest may go on without those that are lost
                self._tell(lambda brain, now: brain.set_spec(self._spec(), now))
            if gathering and not hinted and now - self._began > HINT_AFTER_S:
                hinted = True
                self._hint()
            if self._connected or not lines.at_eof():
                quiet_since = now
            elif now - quiet_since > QUIET_S or not any(life.alive for life in desk.coordinator.roster.lives.values()):
                return self._conclude(view, "interrupted", "Interrupted", "all workers have left before the end")
        deadline = time.monotonic() + LAST_WORDS_S
        while self._connected and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        outcome = "succeeded" if desk.ended.success else "failed"
        return self._conclude(desk.coordinator.view(), outcome, desk.ended.reason, desk.ended.message)

    def _spec(self) -> Any:
        assert self._job is not None  # noqa: S101
        return self._job.spec

    def _hint(self) -> None:
        silent = [worker_id(rank) for rank in range(self._order.size) if worker_id(rank) not in self._devices]
        if silent:
            self._book.event("hint", f"{', '.join(silent)} not connected yet; does the script call rex.init()?")

    def _conclude(self, view: JobView, outcome: str, reason: str, message: str) -> int:
        assert self._desk is not None  # noqa: S101
        self._desk.note()
        self._book.conclude(view, outcome=outcome, reason=reason, message=message, restarts=(0, 0))
        self._desk.save()
        return FAILED if outcome == "failed" else 0

    def _keep(self, saved: SavedState) -> None:
        assert self._job is not None  # noqa: S101
        ended = self._desk.ended if self._desk is not None else None
        self._directory.save(
            RunState(
                job=self._job.metadata.name,
                spec=spec_text(self._gathering),
                elapsed_s=self._seconds(),
                ended=ended is not None,
                success=ended.success if ended else None,
                saved=saved,
            )
        )


def worker_id(rank: int) -> str:
    """Name of the worker that the launcher calls ``rank``."""
    return f"w{rank}"


def _encryption(order: Order) -> tuple[str, ssl.SSLContext | None]:
    """A CA that lives in this process only, for a gang on several hosts; its certificate, and what to serve with."""
    if not order.encrypted:
        return "", None
    from rex_operator.controller.pki import renew

    certificates = renew(None, [order.host], datetime.now(UTC))
    return certificates.ca, certificates.ssl_context()


async def _standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


class _Teller:
    """Tells rank 0's terminal what is decided."""

    def event(self, event: str, message: str) -> None:
        log.info("%s", message)

    def decided(self, record: DecisionRecord) -> None:
        log.info("%s at step %d: %s", record.kind, record.step, record.reason)

    def progress(self, view: JobView, seconds: float) -> None:
        """Nothing: the script prints its own."""
