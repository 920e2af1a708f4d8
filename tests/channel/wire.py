"""A channel server on a free port, and clients that say what a test wants them to say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from rex_operator.channel import ChannelServer, Identity, StaticTokens
from rex_worker.protocol import Down, Hello, Plan, Up, encode, parse_down

W0 = Identity("ns/job", "w0", "life-1")


class Log:
    """A handler that writes down what it is told, and lets a test wait for it."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Identity, Any]] = []
        self._news = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def opened(self, identity: Identity, hello: Hello) -> None:
        self._note("opened", identity, hello)

    def received(self, identity: Identity, message: Up) -> None:
        self._note("received", identity, message)

    def closed(self, identity: Identity) -> None:
        self._note("closed", identity, None)

    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.events]

    async def until(self, met: Callable[[Log], bool]) -> None:
        async with self._news:
            await self._news.wait_for(lambda: met(self))

    def _note(self, kind: str, identity: Identity, what: Any) -> None:
        self.events.append((kind, identity, what))
        task = asyncio.create_task(self._tell())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()


class Wire:
    """The server under test with its handler, its tokens and one client session."""

    def __init__(self, server: ChannelServer, log: Log, tokens: StaticTokens, client: aiohttp.ClientSession) -> None:
        self.server, self.log, self.tokens, self.client = server, log, tokens, client
        self.port = 0
        self.scheme = "http"
        self.ssl: Any = True

    @property
    def url(self) -> str:
        return f"{self.scheme}://localhost:{self.port}/v1/channel"

    @asynccontextmanager
    async def socket(self, token: str = "secret", **options: Any) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with self.client.ws_connect(self.url, headers=headers, ssl=self.ssl, **options) as socket:
            yield socket

    @asynccontextmanager
    async def worker(
        self, identity: Identity = W0, token: str = "secret", **options: Any
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """An authenticated worker."""
        self.tokens.allow(identity, token)
        before = self.log.kinds().count("opened")
        async with self.socket(token, **options) as socket:
            await socket.send_str(encode(hello(identity)))
            await self.log.until(lambda log: log.kinds().count("opened") > before)
            yield socket


@asynccontextmanager
async def serving(ssl_context: Any = None, **limits: Any) -> AsyncIterator[Wire]:
    log, tokens = Log(), StaticTokens()
    server = ChannelServer(tokens, log, **limits)
    async with aiohttp.ClientSession() as client:
        wire = Wire(server, log, tokens, client)
        wire.port = await server.start("localhost", 0, ssl_context)
        try:
            yield wire
        finally:
            await server.stop()


def hello(identity: Identity = W0, **changes: Any) -> Hello:
    values: dict[str, Any] = {
        "job": identity.job,
        "worker_id": identity.worker_id,
        "incarnation": identity.incarnation,
        "device": "a100",
        "address": "127.0.0.1",
        "store_port": 29_500,
    }
    return Hello(**(values | changes))


def plan(version: int, generation: int = 1) -> Plan:
    return Plan(generation=generation, version=version, global_batch=8, local_batches={"w0": 8})


async def read(socket: aiohttp.ClientWebSocketResponse) -> Down:
    return parse_down(await socket.receive_str())


async def close_code(socket: aiohttp.ClientWebSocketResponse) -> int | None:
    """Read until the server hangs up."""
    while not socket.closed:
        await socket.receive()
    return socket.close_code
