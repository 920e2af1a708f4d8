"""A scripted operator for component tests: the real channel protocol over a real socket, and real worker processes.

It accepts workers, keeps every message they say, and sends what a test tells it to. It decides nothing by itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import WSMsgType, web

from rex_worker.protocol import (
    Ack,
    DownMessage,
    Hello,
    Member,
    Membership,
    Message,
    Plan,
    Ready,
    StepReport,
    Steps,
    encode,
    parse_up,
)

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "token-of-the-test"
M = TypeVar("M", bound=Message)


class Nursery:
    """Makes worker processes quickly; see ``tests.worker.nursery``."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.worker.nursery"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, script: Path, environment: Mapping[str, str], log: Path, exit_file: Path) -> int:
        """Start a process; returns its pid."""
        request = {"script": str(script), "env": dict(environment), "log": str(log), "exit": str(exit_file)}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait()


@dataclass
class Worker:
    """One process and all it ever said."""

    worker_id: str
    pid: int
    log: Path
    exit_file: Path
    messages: list[Any] = field(default_factory=list)
    sockets: list[web.WebSocketResponse] = field(default_factory=list)
    hellos: list[Hello] = field(default_factory=list)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    @property
    def exit_code(self) -> int | None:
        return int(self.exit_file.read_text()) if self.exit_file.exists() else None

    async def end(self) -> int:
        """Wait for the process to end; returns its exit code (negative: a signal)."""
        while self.exit_code is None:
            await asyncio.sleep(0.01)
        return self.exit_code

    def said(self, kind: type[M]) -> list[M]:
        return [message for message in self.messages if isinstance(message, kind)]

    def steps(self) -> list[StepReport]:
        return [report for message in self.said(Steps) for report in message.steps]

    @property
    def last_step(self) -> int:
        return max((report.step for report in self.steps()), default=0)

    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


class Operator:
    """The scripted operator."""

    def __init__(self, folder: Path, nursery: Nursery) -> None:
        self._folder = folder
        self._nursery = nursery
        self._lives = 0
        self.workers: dict[str, Worker] = {}
        """The latest life of each."""
        self._all: list[Worker] = []
        self.changed = asyncio.Condition()
        self.port = 0
        self.tokens: list[str] = []

    async def start(self, worker_id: str, script: Path | str, **variables: str) -> Worker:
        """Start a worker process on ``script`` (a file, or source text)."""
        if isinstance(script, str):
            path = self._folder / f"script-{worker_id}.py"
            path.write_text(script)
            script = path
        token = self._folder / "token"
        token.write_text(TOKEN + "\n")
        self._lives += 1
        life = f"{worker_id}-{self._lives}"
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "REX_JOB": "test/job",
            "REX_WORKER_ID": worker_id,
            "REX_INCARNATION": life,
            "REX_CHANNEL_URL": f"ws://127.0.0.1:{self.port}/v1/channel",
            "REX_TOKEN_FILE": str(token),
            "REX_DEVICE": "t4",
            "REX_ADDRESS": "127.0.0.1",
            "REX_JOB_SEED": "7",
            **variables,
        }
        log, exit_file = self._folder / f"{life}.log", self._folder / f"{life}.exit"
        pid = self._nursery.start(script, environment, log, exit_file)
        worker = self.workers[worker_id] = Worker(worker_id, pid, log, exit_file)
        self._all.append(worker)
        return worker

    async def until(self, what: str, condition: Callable[[], bool], timeout: float = 120) -> None:
        """Wait for a condition on what was said; a process that died meanwhile ends the wait with its log."""

        async def met() -> None:
            async with self.changed:
                await self.changed.wait_for(condition)

        try:
            await asyncio.wait_for(met(), timeout)
        except TimeoutError:
            raise AssertionError(f"waited in vain for: {what}\n{self._logs()}") from None

    async def ready(self, *workers: Worker) -> None:
        await self.until("Ready", lambda: all(worker.said(Ready) for worker in workers))

    async def acknowledged(self, version: int, *workers: Worker) -> set[int]:
        """Wait until the workers run under a plan; returns the steps at which they say they began."""
        await self.until(f"Ack of plan {version}", lambda: all(_acks(worker, version) for worker in workers))
        return {ack.step for worker in workers for ack in _acks(worker, version)}

    async def reached(self, step: int, *workers: Worker) -> None:
        await self.until(f"step {step}", lambda: all(worker.last_step >= step for worker in workers))

    async def ended(self, *workers: Worker, timeout: float = 120) -> list[int]:
        """Wait for the processes' ends; returns their exit codes."""
        try:
            return [await asyncio.wait_for(worker.end(), timeout) for worker in workers]
        except TimeoutError:
            raise AssertionError(f"a worker did not end\n{self._logs()}") from None

    async def end_of(self, worker: Worker) -> int:
        """Wait for one process' end; returns its exit code."""
        return (await self.ended(worker))[0]

    async def until_true(self, what: str, condition: Callable[[], bool], timeout: float = 120) -> None:
        """Wait for a condition on files, which nobody announces."""

        async def met() -> None:
            while not condition():
                await asyncio.sleep(0.02)

        try:
            await asyncio.wait_for(met(), timeout)
        except TimeoutError:
            raise AssertionError(f"waited in vain for: {what}\n{self._logs()}") from None

    def _logs(self) -> str:
        return "\n".join(f"--- {w.log.stem}: exit {w.exit_code}\n{w.text()[-3000:]}" for w in self._all)

    async def clear(self) -> None:
        """Kill what is left."""
        for worker in self._all:
            if worker.exit_code is None:
                worker.signal(signal.SIGKILL)
                await worker.end()

    async def send(self, message: DownMessage, *workers: Worker) -> None:
        for worker in workers:
            await worker.sockets[-1].send_str(encode(message))

    async def form(
        self, generation: int, batches: Mapping[str, int], *also: Worker, version: int | None = None, **fields: Any
    ) -> Membership:
        """Send a membership of the workers named in ``batches`` to them, and to ``also``."""
        plan = make_plan(generation, version or generation, batches, **fields.pop("plan", {}))
        members = []
        for worker_id in batches:
            hello = self.workers[worker_id].hellos[-1]
            members.append(
                Member(
                    worker_id=worker_id,
                    incarnation=hello.incarnation,
                    address=hello.address,
                    store_port=hello.store_port,
                )
            )
        membership = Membership(generation=generation, members=members, plan=plan, **fields)
        await self.send(membership, *(self.workers[worker_id] for worker_id in batches), *also)
        return membership

    async def handle(self, request: web.Request) -> web.StreamResponse:
        authorization = request.headers.get("Authorization", "")
        self.tokens.append(authorization)
        if authorization != f"Bearer {TOKEN}":
            return web.Response(status=401)
        socket = web.WebSocketResponse(max_msg_size=64 * 1024, compress=False)
        await socket.prepare(request)
        hello = parse_up(await socket.receive_str())
        assert isinstance(hello, Hello)
        worker = self.workers[hello.worker_id]
        worker.hellos.append(hello)
        worker.sockets.append(socket)
        await self._note()
        async for frame in socket:
            assert frame.type is WSMsgType.TEXT
            worker.messages.append(parse_up(frame.data))
            await self._note()
        await self._note()
        return socket

    async def _note(self) -> None:
        async with self.changed:
            self.changed.notify_all()


def make_plan(generation: int, version: int, batches: Mapping[str, int], **fields: Any) -> Plan:
    return Plan(
        generation=generation,
        version=version,
        global_batch=sum(batches.values()),
        local_batches=dict(batches),
        **fields,
    )


def _acks(worker: Worker, version: int) -> Sequence[Ack]:
    return [ack for ack in worker.said(Ack) if ack.plan_version == version]


@asynccontextmanager
async def serving(scripted: Operator, port: int = 0) -> AsyncIterator[None]:
    """Let the operator be reachable for the time of the block."""
    application = web.Application()
    application.router.add_get("/v1/channel", scripted.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.5)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    scripted.port = runner.addresses[0][1]
    try:
        yield
    finally:
        for worker in scripted.workers.values():
            for socket in worker.sockets:
                await socket.close()
        await runner.cleanup()
