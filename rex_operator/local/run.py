"""Runs one RexJob on this machine: the shell around the coordinator that needs no cluster.

It carries out what the coordinator decides (messages over the same channel, searches in a thread, saved state in a
file), does what a cluster would do (starts a process per worker, replaces one that ends, keeps the deadlines), and
writes down what happens. Everything runs in one event loop, in which nothing waits.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rex_operator.api import RexJob
from rex_operator.channel import PATH, ChannelServer, Identity, StaticTokens
from rex_operator.jobs import JobView, SavedState
from rex_operator.local.book import Book, Observer
from rex_operator.local.crew import Crew, Post
from rex_operator.local.deadlines import Deadlines
from rex_operator.local.desk import Desk, spec_text
from rex_operator.local.environment import Place, Program, has_gpu
from rex_operator.local.filling import fill
from rex_operator.local.process import log_tail
from rex_operator.local.restarts import Restarts
from rex_operator.local.rundir import RunDirectory, RunState
from rex_worker.protocol import Checkpointed, CheckpointFailed, Hello, Metrics, Up

TICK_S = 0.25
FINISH_PATIENCE_S = 30.0
"""How long workers may take to exit after a success."""
STOP_PATIENCE_S = 60.0
"""How long workers may take to save and leave after Ctrl-C."""
FAIL_PATIENCE_S = 5.0

Result = Literal["succeeded", "failed", "interrupted"]


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    result: Result
    reason: str
    message: str
    seconds: float


class LocalRun:
    """One run, from start to end, or to an interrupt. Use once."""

    def __init__(
        self,
        job: RexJob,
        program: Program,
        directory: RunDirectory,
        state: RunState | None,
        observer: Observer,
        *,
        max_seconds: float | None = None,
        emulate: bool | None = None,
    ) -> None:
        self.job, self.directory = job, directory
        self._observer = observer
        self._emulate = not has_gpu() if emulate is None else emulate
        self._program = program
        self._name = f"local/{job.metadata.name}"
        self._seed = zlib.crc32(job.metadata.name.encode())
        self._spec_text = spec_text(job)
        self._past = state or RunState(job=job.metadata.name)
        self._resumed = state is not None
        self._began = time.monotonic()
        self._seats = fill(job.spec)
        self._restarts = Restarts(job.spec.failure, len(self._seats), self._past.charged, self._past.uncharged)
        self._deadlines = Deadlines(job.spec, max_seconds)
        self.summary: dict[str, Any] = {}
        """The run in figures, once it has ended."""

    # --- the whole run ---------------------------------------------------------------------------------------------

    async def run(self) -> Outcome:
        """Run to the end of the job, an interrupt, or ``max_seconds``; leave no process behind."""
        self._book = Book(self.directory, self._observer, self.seconds)
        tokens = StaticTokens()
        server = ChannelServer(tokens, self)
        past = self._past if self._resumed else None
        self._desk = Desk(self.job, self._name, self._seed, past, self._book, server, self._keep)
        self._coordinator, self._apply = self._desk.coordinator, self._desk.apply
        with tempfile.TemporaryDirectory(prefix="rex-") as private:
            self._crew = Crew(self.job, self._program, self._seats, self.directory, tokens, Path(private), self)
            port = await server.start("127.0.0.1", 0)
            checkpoints = self.directory.checkpoints.resolve() if self.job.spec.checkpoint else None
            self._place = Place(self._name, f"ws://127.0.0.1:{port}{PATH}", checkpoints, self._seed, self._emulate)
            try:
                self._start_workers()
                await self._watch()
                return await self._wind_up()
            finally:
                self._crew.kill()
                await self._crew.disband(0)
                await server.stop()
                self._book.close()

    def seconds(self) -> float:
        """Seconds of this run, over all of its parts."""
        return self._past.elapsed_s + time.monotonic() - self._began

    def interrupt(self, reason: str) -> None:
        """Ask for an end that can be continued: first workers save and leave, the second time they are killed."""
        if self._coordinator.stopping is None and self._desk.ended is None:
            self._book.event("interrupted", f"{reason}: saving a checkpoint and stopping; once more to stop at once")
            self._apply(self._coordinator.stop(reason, time.monotonic()))
            for post in self._crew.running():
                if not post.ever_connected and post.process is not None:
                    post.process.terminate()
        else:
            self._book.event("interrupted", "stopping at once")
            self._crew.kill()
        self._desk.over.set()

    def view(self) -> JobView:
        """The job as it stands."""
        return self._coordinator.view()

    def pids(self) -> dict[str, int]:
        """The processes of the workers that run."""
        return {post.seat.worker_id: post.process.pid for post in self._crew.running() if post.process is not None}

    # --- the channel's news ----------------------------------------------------------------------------------------

    def opened(self, identity: Identity, hello: Hello) -> None:
        """A worker connected."""
        self._crew.opened(identity)
        self._apply(self._coordinator.connected(identity.worker_id, identity.incarnation, hello, time.monotonic()))

    def received(self, identity: Identity, message: Up) -> None:
        """A worker said something."""
        if isinstance(message, Metrics):
            self._book.metrics(message)
        self._apply(self._coordinator.message(identity.worker_id, identity.incarnation, message, time.monotonic()))
        if isinstance(message, Checkpointed):
            self._book.record.event("checkpoint", f"checkpoint at step {message.step} is safe", step=message.step)
        if isinstance(message, CheckpointFailed):
            what = "failed" if message.resumed is None else f"cannot be used, that of step {message.resumed} is"
            self._book.event("checkpoint-failed", f"checkpoint of step {message.step} {what}: {message.message}")

    def closed(self, identity: Identity) -> None:
        """A worker's session is over."""
        self._crew.closed(identity)
        self._apply(self._coordinator.disconnected(identity.worker_id, identity.incarnation, time.monotonic()))

    # --- the workers -----------------------------------------------------------------------------------------------

    def _keep(self, saved: SavedState) -> None:
        ended = self._desk.ended
        self.directory.save(
            RunState(
                job=self.job.metadata.name,
                spec=self._spec_text,
                elapsed_s=self.seconds(),
                charged=self._restarts.charged,
                uncharged=self._restarts.uncharged,
                ended=ended is not None,
                success=ended.success if ended else None,
                saved=saved,
            )
        )

    def _start_workers(self) -> None:
        posts = list(self._crew.posts.values())
        devices = {post.seat.worker_id: post.seat.pool.device for post in posts}
        self._book.record.write("start", job=self.job.metadata.name, devices=devices, resumed=self._resumed)
        for warning in self._program.warnings:
            self._book.event("warning", warning)
        for post in posts:
            self._crew.renew(post)
        self._tell_targets()
        for post in posts:
            self._crew.start(post, self._place)
        kinds = ", ".join(devices.values())
        self._book.event(
            "started", f"{len(posts)} workers ({kinds}) started; logs are in {self.directory.path / 'logs'}"
        )

    def _tell_targets(self) -> None:
        self._apply(self._coordinator.set_target(self._crew.targets(), time.monotonic()))

    def worker_started(self, post: Post) -> None:
        """A worker's process runs."""
        pid = post.process.pid if post.process is not None else 0
        self._book.record.event("worker-started", f"{post.seat.worker_id} runs as process {pid}", pid=pid)

    def worker_ended(self, post: Post, code: int) -> None:
        """A worker's process has ended, and its channel has said its last."""
        worker_id, now = post.seat.worker_id, time.monotonic()
        row = next((row for row in self._coordinator.view().workers if row.incarnation == post.incarnation), None)
        state, error = (row.state, row.failed) if row is not None else ("gone", "")
        self._apply(self._coordinator.gone(worker_id, post.incarnation, f"exit code {code}", now))
        if self._desk.ended is not None or self._coordinator.stopping is not None or state == "finished":
            return
        step = self._coordinator.progress.step
        then = self._restarts.after(worker_id, state, code, connected=post.ever_connected, error=error, step=step)
        if then.fail:
            self._fail(then.fail, f"{then.message}{self._log_tail(worker_id)}")
        else:
            self._book.event("worker-ended", then.message)
            self._replace(post, then.delay_s)

    def _replace(self, post: Post, delay_s: float) -> None:
        self._crew.renew(post)
        self._tell_targets()
        self._crew.start(post, self._place, delay_s)

    def _fail(self, reason: str, message: str) -> None:
        self._apply(self._coordinator.fail(reason, message, time.monotonic()))

    def _log_tail(self, worker_id: str) -> str:
        log_file = self.directory.log(worker_id)
        indented = "\n".join(f"    {line}" for line in log_tail(log_file).splitlines())
        return f"\n  last lines of {log_file}:\n{indented}" if indented else ""

    # --- time ------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while not self._desk.over.is_set():
            try:
                await asyncio.wait_for(self._desk.over.wait(), TICK_S)
            except TimeoutError:
                self._tick()

    def _tick(self) -> None:
        self._desk.tick()
        view = self._coordinator.view()
        self._keep_deadlines(view)
        self._revive(view)

    def _keep_deadlines(self, view: JobView) -> None:
        if self._coordinator.stopping is not None:
            return
        silent = [worker_id for worker_id, post in self._crew.posts.items() if not post.ever_connected]
        late = self._deadlines.check(view, silent, time.monotonic() - self._began, self.seconds())
        if late is None:
            return
        match late.what:
            case "hint":
                self._book.event("hint", late.message)
            case "max":
                self.interrupt(late.message)
            case "pending":
                self._fail(
                    "PendingDeadlineExceeded", late.message + (self._log_tail(late.silent) if late.silent else "")
                )
            case "active":
                self._fail("DeadlineExceeded", late.message)

    def _revive(self, view: JobView) -> None:
        """End the processes that the group has given up, and start again what is needed after a false finish."""
        rows = {row.incarnation: row for row in view.workers}
        for post in self._crew.running():
            row = rows.get(post.incarnation)
            if row is not None and row.state == "lost" and post.process is not None:
                self._book.event("worker-lost", f"{post.seat.worker_id} is given up and replaced")
                post.process.kill()
        if view.phase == "Recovering":
            for post in self._crew.finished():
                self._book.event(
                    "worker-revived", f"{post.seat.worker_id} is needed again: the final checkpoint is missing"
                )
                self._replace(post, self._restarts.delay(view.step))

    # --- the end ---------------------------------------------------------------------------------------------------

    async def _wind_up(self) -> Outcome:
        if self._desk.ended is None:
            await self._crew.disband(STOP_PATIENCE_S)
            if self._desk.ended is None:
                return self._conclude("interrupted", "Interrupted", self._how_to_go_on())
        assert self._desk.ended is not None  # noqa: S101
        await self._crew.disband(FINISH_PATIENCE_S if self._desk.ended.success else FAIL_PATIENCE_S)
        result: Result = "succeeded" if self._desk.ended.success else "failed"
        return self._conclude(result, self._desk.ended.reason, self._desk.ended.message)

    def _how_to_go_on(self) -> str:
        step = self._coordinator.known.checkpoint_step
        if self.job.spec.checkpoint is None:
            return "without spec.checkpoint, the same command begins the training again"
        if not step:
            return "no step was saved yet; the same command begins again"
        return f"the same command goes on from the checkpoint at step {step}, --fresh starts over"

    def _conclude(self, result: Result, reason: str, message: str) -> Outcome:
        self._desk.note()
        view = self._coordinator.view()
        restarts = (self._restarts.charged, self._restarts.uncharged)
        self.summary = self._book.conclude(view, outcome=result, reason=reason, message=message, restarts=restarts)
        self._desk.save()
        return Outcome(result, reason, message, self.seconds())
