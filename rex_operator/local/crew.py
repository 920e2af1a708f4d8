"""The worker processes of a run: started, watched, replaced, and all ended when the run ends."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rex_operator.api import RexJob
from rex_operator.channel import Identity, StaticTokens
from rex_operator.jobs import Target
from rex_operator.local.environment import Place, Program, worker_environment
from rex_operator.local.filling import Seat
from rex_operator.local.process import WorkerProcess
from rex_operator.local.rundir import RunDirectory

TERMINATION_S = 5.0
LAST_WORDS_S = 2.0
"""How long after a process ended its channel may still deliver what it said last."""


@dataclass
class Post:
    """A seat and the life that sits in it."""

    seat: Seat
    incarnation: str = ""
    process: WorkerProcess | None = None
    session_closed: asyncio.Event | None = None
    """Set while no session of this life is open."""
    ever_connected: bool = False
    over: bool = False
    """The life has ended and no other was begun."""

    @property
    def target(self) -> Target:
        """As the coordinator is told."""
        pool = self.seat.pool
        return Target(self.incarnation, pool.name, pool.device, pool.max_local_batch)


class Shift(Protocol):
    """Who is told of the processes; once for each life."""

    def worker_started(self, post: Post) -> None:
        """Its process runs."""

    def worker_ended(self, post: Post, code: int) -> None:
        """Its process has ended with this exit code, and its channel has said its last."""


class Crew:
    """All posts of a run."""

    def __init__(
        self,
        job: RexJob,
        program: Program,
        seats: Iterable[Seat],
        directory: RunDirectory,
        tokens: StaticTokens,
        secrets_dir: Path,
        shift: Shift,
    ) -> None:
        self._job, self._program, self._directory = job, program, directory
        self._tokens, self._secrets_dir, self._shift = tokens, secrets_dir, shift
        self.posts = {seat.worker_id: Post(seat) for seat in seats}
        self._lives: set[asyncio.Task[None]] = set()
        self._disbanding = asyncio.Event()

    def targets(self) -> dict[str, Target]:
        """The lives that exist or are being started."""
        return {worker_id: post.target for worker_id, post in self.posts.items()}

    def renew(self, post: Post) -> None:
        """Give the post a new life, to be started with ``start``."""
        post.incarnation = str(uuid.uuid4())
        post.process, post.ever_connected, post.over = None, False, False
        post.session_closed = asyncio.Event()
        post.session_closed.set()

    def start(self, post: Post, place: Place, delay_s: float = 0.0) -> None:
        """Start the post's life, after ``delay_s`` seconds."""
        task = asyncio.create_task(self._live(post, place, delay_s), name=f"worker-{post.seat.worker_id}")
        self._lives.add(task)
        task.add_done_callback(self._lives.discard)

    def opened(self, identity: Identity) -> None:
        """A session opened."""
        post = self._post(identity)
        if post is not None and post.session_closed is not None:
            post.ever_connected = True
            post.session_closed.clear()

    def closed(self, identity: Identity) -> None:
        """A session closed."""
        post = self._post(identity)
        if post is not None and post.session_closed is not None:
            post.session_closed.set()

    def running(self) -> list[Post]:
        """Posts whose process runs."""
        return [post for post in self.posts.values() if post.process is not None and post.process.running]

    def finished(self) -> list[Post]:
        """Posts whose life has ended without being replaced."""
        return [post for post in self.posts.values() if post.over]

    async def disband(self, patience_s: float) -> None:
        """Start nobody any more; wait for the processes to end by themselves, then ask them to, then end them."""
        self._disbanding.set()
        await self._all_gone_within(patience_s)
        for post in self.running():
            if post.process is not None:
                post.process.terminate()
        await self._all_gone_within(TERMINATION_S)
        self.kill()
        await self._all_gone_within(TERMINATION_S)

    def kill(self) -> None:
        """End all processes at once, and start nobody any more."""
        self._disbanding.set()
        for post in self.running():
            if post.process is not None:
                post.process.kill()

    def _post(self, identity: Identity) -> Post | None:
        post = self.posts.get(identity.worker_id)
        return post if post is not None and post.incarnation == identity.incarnation else None

    async def _live(self, post: Post, place: Place, delay_s: float) -> None:
        if delay_s:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._disbanding.wait(), delay_s)
        if self._disbanding.is_set():
            return
        identity = Identity(place.job, post.seat.worker_id, post.incarnation)
        token = secrets.token_urlsafe(32)
        file = self._secrets_dir / f"{post.seat.worker_id}-{post.incarnation}"
        file.touch(mode=0o600)
        file.write_text(token)
        self._tokens.allow(identity, token)
        env = worker_environment(self._program, self._job, place, post.seat, post.incarnation, file)
        log = self._directory.log(post.seat.worker_id)
        post.process = await WorkerProcess.start(self._program.command, env, self._program.cwd, log)
        self._shift.worker_started(post)
        code = await post.process.wait()
        if post.session_closed is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(post.session_closed.wait(), LAST_WORDS_S)
        self._tokens.revoke(identity)
        file.unlink(missing_ok=True)
        post.over = True
        self._shift.worker_ended(post, code)

    async def _all_gone_within(self, seconds: float) -> None:
        if self._lives:
            await asyncio.wait(set(self._lives), timeout=seconds)
