"""Runs one RexJob on this machine: the shell around the coordinator that needs no cluster.

It carries out what the coordinator decides (messages over the same channel, searches in a thread, saved state in a
file), does what a cluster would do (starts a process per worker, replaces one that ends, keeps the deadlines), and
writes down what happens. Everything runs in one event loop, in which nothing waits.
"""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from rex_operator.api import RexJob
from rex_operator.channel import PATH, ChannelServer, Identity, StaticTokens
from rex_operator.jobs import Action, Coordinator, Ended, JobView, RunSearch, Save, Send, judge, restart_delay
from rex_operator.local.crew import Crew, Post
from rex_operator.local.environment import Place, Program, has_gpu
from rex_operator.local.filling import fill
from rex_operator.local.process import log_tail
from rex_operator.local.recorder import Recorder
from rex_operator.local.rundir import RunDirectory, RunState, write_whole
from rex_operator.local.summary import Tally, summarize
from rex_operator.planning import DecisionRecord, SearchRequest, run_search
from rex_worker.protocol import Checkpointed, Hello, Membership, Metrics, Plan, Up

log = logging.getLogger(__name__)

TICK_S = 0.25
FINISH_PATIENCE_S = 30.0
"""How long workers may take to exit after a success."""
STOP_PATIENCE_S = 60.0
"""How long workers may take to save and leave after Ctrl-C."""
FAIL_PATIENCE_S = 5.0
HINT_AFTER_S = 60.0
"""When a worker that has not connected is worth a word."""

Result = Literal["succeeded", "failed", "interrupted"]


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    result: Result
    reason: str
    message: str
    seconds: float


class Observer(Protocol):
    """Who shows the run to people. Called in the event loop; must return quickly."""

    def event(self, event: str, message: str) -> None:
        """Something happened that people may want to know."""

    def decided(self, record: DecisionRecord) -> None:
        """The planner decided something."""

    def progress(self, view: JobView, seconds: float) -> None:
        """The job as it stands, several times a second."""


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
        self.job, self.directory, self.observer = job, directory, observer
        self._max_seconds = max_seconds
        self._emulate = not has_gpu() if emulate is None else emulate
        self._program = program
        self._name = f"local/{job.metadata.name}"
        self._seed = zlib.crc32(job.metadata.name.encode())
        self._spec_text = json.dumps(
            job.spec.model_dump(mode="json", by_alias=True, exclude={"template"}), sort_keys=True
        )
        self._past = state or RunState(job=job.metadata.name)
        self._resumed = state is not None
        self._began = time.monotonic()
        self.charged, self.uncharged = self._past.charged, self._past.uncharged
        self._failures_in_a_row, self._failed_at_step = 0, -1
        self._hinted = False
        self._over = asyncio.Event()
        self._ended: Ended | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.summary: dict[str, Any] = {}
        """The run in figures, once it has ended."""

    # --- the whole run ---------------------------------------------------------------------------------------------

    async def run(self) -> Outcome:
        """Run to the end of the job, an interrupt, or ``max_seconds``; leave no process behind."""
        self._recorder = Recorder(self.directory.record, self.seconds)
        self._tally = Tally.read(self.directory.record)
        self._coordinator = self._make_coordinator()
        tokens = StaticTokens()
        self._server = ChannelServer(tokens, self)
        with tempfile.TemporaryDirectory(prefix="rex-") as private:
            self._crew = Crew(
                self.job, self._program, fill(self.job.spec), self.directory, tokens, Path(private), self._worker_ended
            )
            port = await self._server.start("127.0.0.1", 0)
            checkpoints = self.directory.checkpoints.resolve() if self.job.spec.checkpoint else None
            self._place = Place(self._name, f"ws://127.0.0.1:{port}{PATH}", checkpoints, self._seed, self._emulate)
            try:
                self._start_workers()
                await self._watch()
                return await self._wind_up()
            finally:
                self._crew.kill()
                await self._crew.disband(0)
                await self._server.stop()
                self._recorder.close()

    def seconds(self) -> float:
        """Seconds of this run, over all of its parts."""
        return self._past.elapsed_s + time.monotonic() - self._began

    def interrupt(self, reason: str) -> None:
        """Ask for an end that can be continued: first workers save and leave, the second time they are killed."""
        if self._coordinator.stopping is None and self._ended is None:
            self._event("interrupted", f"{reason}: saving a checkpoint and stopping; once more to stop at once")
            self._apply(self._coordinator.stop(reason, time.monotonic()))
            for post in self._crew.running():
                if not post.ever_connected and post.process is not None:
                    post.process.terminate()
        else:
            self._event("interrupted", "stopping at once")
            self._crew.kill()
        self._over.set()

    def view(self) -> JobView:
        """The job as it stands."""
        return self._coordinator.view()

    # --- the channel's news ----------------------------------------------------------------------------------------

    def opened(self, identity: Identity, hello: Hello) -> None:
        """A worker connected."""
        self._crew.opened(identity)
        self._apply(self._coordinator.connected(identity.worker_id, identity.incarnation, hello, time.monotonic()))

    def received(self, identity: Identity, message: Up) -> None:
        """A worker said something."""
        if isinstance(message, Metrics):
            self._recorder.metrics(message)
            self._tally.metrics(message.values)
        self._apply(self._coordinator.message(identity.worker_id, identity.incarnation, message, time.monotonic()))
        if isinstance(message, Checkpointed):
            self._recorder.event("checkpoint", f"checkpoint at step {message.step} is safe", step=message.step)

    def closed(self, identity: Identity) -> None:
        """A worker's session is over."""
        self._crew.closed(identity)
        self._apply(self._coordinator.disconnected(identity.worker_id, identity.incarnation, time.monotonic()))

    # --- carrying out ----------------------------------------------------------------------------------------------

    def _apply(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Send(worker_id, incarnation, message):
                    if isinstance(message, Membership):
                        self._recorder.membership(message)
                    elif isinstance(message, Plan):
                        self._recorder.plan(message)
                    self._server.send(Identity(self._name, worker_id, incarnation), message)
                case Save():
                    self._note_decisions()
                    self._save()
                case RunSearch(request):
                    self._keep(asyncio.create_task(self._search(request)))
                case Ended():
                    self._ended = action
                    self._over.set()

    async def _search(self, request: SearchRequest) -> None:
        result = await asyncio.to_thread(run_search, request)
        self._apply(self._coordinator.search_finished(request, result, time.monotonic()))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("search failed", exc_info=error)
            self._event("search-failed", f"the search for a better batch failed: {error}")

    def _note_decisions(self) -> None:
        for record in self._recorder.decisions(self._coordinator.planner.decisions):
            self._tally.decision(record)
            self.observer.decided(record)

    def _event(self, event: str, message: str) -> None:
        self._recorder.event(event, message)
        self.observer.event(event, message)

    def _save(self) -> None:
        self.directory.save(
            RunState(
                job=self.job.metadata.name,
                spec=self._spec_text,
                elapsed_s=self.seconds(),
                charged=self.charged,
                uncharged=self.uncharged,
                ended=self._ended is not None,
                success=self._ended.success if self._ended else None,
                saved=self._coordinator.saved(),
            )
        )

    # --- the workers -----------------------------------------------------------------------------------------------

    def _make_coordinator(self) -> Coordinator:
        now, saved = time.monotonic(), self._past.saved
        if self._resumed and self._past.spec != self._spec_text:
            self._event("changed", "the manifest has changed since: training goes on, the planner starts anew")
            saved = saved.model_copy(update={"planner": None})
        # Nobody of the earlier part is alive: only the numbers, the checkpoint and what was learned count.
        saved = saved.model_copy(update={"members": [], "plan": None})
        coordinator = Coordinator(
            self._name, self.job.spec, np.random.default_rng(self._seed), now, saved if self._resumed else None
        )
        self._recorder.remember(coordinator.planner.decisions)
        return coordinator

    def _start_workers(self) -> None:
        posts = list(self._crew.posts.values())
        devices = {post.seat.worker_id: post.seat.pool.device for post in posts}
        self._recorder.write("start", job=self.job.metadata.name, devices=devices, resumed=self._resumed)
        for warning in self._program.warnings:
            self._event("warning", warning)
        for post in posts:
            self._crew.renew(post)
        self._tell_targets()
        for post in posts:
            self._crew.start(post, self._place)
        kinds = ", ".join(devices.values())
        self._event("started", f"{len(posts)} workers ({kinds}) started; logs are in {self.directory.path / 'logs'}")

    def _tell_targets(self) -> None:
        self._apply(self._coordinator.set_target(self._crew.targets(), time.monotonic()))

    def _worker_ended(self, post: Post, code: int) -> None:
        worker_id = post.seat.worker_id
        rows = {row.incarnation: row for row in self._coordinator.view().workers}
        row = rows.get(post.incarnation)
        said = row.failed if row is not None else ""
        state = row.state if row is not None else "gone"
        what = f"{worker_id} ended with exit code {code}" + (f": {said}" if said else "")
        self._apply(self._coordinator.gone(worker_id, post.incarnation, f"exit code {code}", time.monotonic()))
        if self._ended is not None or self._coordinator.stopping is not None:
            return
        if state == "finished":
            return
        if not post.ever_connected and code == 0:
            tail = self._log_tail(worker_id)
            self._fail("NeverCalledRex", f"{worker_id} ran the script to its end without ever calling rex.init(){tail}")
            return
        planned = state in ("leaving", "drained", "stopped")
        verdict = judge(self.job.spec.failure, self.charged, code, ["Terminated"] if planned else [])
        self.charged += verdict.charged and not verdict.fail
        self.uncharged += not verdict.charged
        if verdict.fail:
            reason = "RestartsUsedUp" if "maxRestarts" in verdict.message else "FailureRule"
            self._fail(reason, f"{what}; {verdict.message}{self._log_tail(worker_id)}")
            return
        self._event("worker-ended", f"{what}; {verdict.message}")
        self._replace(post)

    def _replace(self, post: Post) -> None:
        step = self._coordinator.progress.step
        self._failures_in_a_row = self._failures_in_a_row + 1 if step <= self._failed_at_step else 1
        self._failed_at_step = step
        self._crew.renew(post)
        self._tell_targets()
        rounds = -(-self._failures_in_a_row // len(self._crew.posts))
        self._crew.start(post, self._place, restart_delay(rounds))

    def _fail(self, reason: str, message: str) -> None:
        self._apply(self._coordinator.fail(reason, message, time.monotonic()))

    def _log_tail(self, worker_id: str) -> str:
        tail = log_tail(self.directory.log(worker_id))
        indented = "\n".join(f"    {line}" for line in tail.splitlines())
        return f"\n  last lines of {self.directory.log(worker_id)}:\n{indented}" if tail else ""

    # --- time ------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while not self._over.is_set():
            try:
                await asyncio.wait_for(self._over.wait(), TICK_S)
            except TimeoutError:
                self._tick()

    def _tick(self) -> None:
        self._apply(self._coordinator.tick(time.monotonic()))
        self._note_decisions()
        view = self._coordinator.view()
        self._recorder.step(view)
        self.observer.progress(view, self.seconds())
        self._keep_deadlines(view)
        self._revive(view)

    def _keep_deadlines(self, view: JobView) -> None:
        spec, here = self.job.spec, time.monotonic() - self._began
        silent = [post for post in self._crew.posts.values() if not post.ever_connected]
        if view.phase == "Pending" or (view.phase == "Recovering" and self._coordinator.group.members == []):
            if here > spec.pending_deadline_seconds:
                self._fail("PendingDeadlineExceeded", self._why_pending(silent, view))
            elif here > HINT_AFTER_S and silent and not self._hinted:
                self._hinted = True
                names = ", ".join(post.seat.worker_id for post in silent)
                self._event("hint", f"{names} not connected after {here:.0f} s; does the script call rex.init()?")
        if spec.active_deadline_seconds is not None and self.seconds() > spec.active_deadline_seconds:
            self._fail("DeadlineExceeded", f"activeDeadlineSeconds ({spec.active_deadline_seconds}) are over")
        if self._max_seconds is not None and here > self._max_seconds and self._coordinator.stopping is None:
            self.interrupt(f"{self._max_seconds:g} s (--max-seconds) are over")

    def _why_pending(self, silent: Sequence[Post], view: JobView) -> str:
        bound = f"no group of workers after {self.job.spec.pending_deadline_seconds} s (pendingDeadlineSeconds)"
        if silent:
            worker_id = silent[0].seat.worker_id
            return f"{bound}: the script never called rex.init() on {worker_id}{self._log_tail(worker_id)}"
        states = ", ".join(f"{row.worker_id} is {row.state}" for row in view.workers)
        return f"{bound}: {states}"

    def _revive(self, view: JobView) -> None:
        """End the processes that the group has given up, and start again what is needed after a false finish."""
        rows = {row.incarnation: row for row in view.workers}
        for post in self._crew.running():
            row = rows.get(post.incarnation)
            if row is not None and row.state == "lost" and post.process is not None:
                self._event("worker-lost", f"{post.seat.worker_id} is given up and replaced")
                post.process.kill()
        if (
            view.phase == "Recovering"
            and not self._coordinator.finishing
            and not any(row.state == "starting" for row in view.workers)
        ):
            for post in self._crew.posts.values():
                if post.process is not None and not post.process.running and post.incarnation not in rows:
                    self._replace(post)

    # --- the end ---------------------------------------------------------------------------------------------------

    async def _wind_up(self) -> Outcome:
        if self._ended is None:
            await self._crew.disband(STOP_PATIENCE_S)
            if self._ended is None:
                return self._conclude("interrupted", "Interrupted", self._how_to_go_on())
        assert self._ended is not None  # noqa: S101
        await self._crew.disband(FINISH_PATIENCE_S if self._ended.success else FAIL_PATIENCE_S)
        result: Result = "succeeded" if self._ended.success else "failed"
        return self._conclude(result, self._ended.reason, self._ended.message)

    def _how_to_go_on(self) -> str:
        if self.job.spec.checkpoint is None:
            return "interrupted; without spec.checkpoint the training starts from the beginning next time"
        step = self._coordinator.checkpoint_step
        return f"interrupted; the same command goes on from the checkpoint at step {step}, --fresh starts over"

    def _conclude(self, result: Result, reason: str, message: str) -> Outcome:
        self._note_decisions()
        view = self._coordinator.view()
        self._recorder.step(view)
        self.observer.progress(view, self.seconds())
        self.summary = summarize(
            view,
            self._tally,
            seconds=self.seconds(),
            restarts=(self.charged, self.uncharged),
            outcome=result,
            message=message,
        )
        success = result == "succeeded"
        self._recorder.write("end", success=success, reason=reason, message=message, summary=self.summary)
        write_whole(self.directory.summary, json.dumps(self.summary, indent=2, allow_nan=False) + "\n")
        self._save()
        return Outcome(result, reason, message, self.seconds())
