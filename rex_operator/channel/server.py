"""The operator's end of the worker channel.

Anything may connect here, so nothing is believed and nothing grows: connections are counted, those who have not proven
who they are get little time and few places, messages are small and closed, and a malformed one costs its sender the
session and nobody else anything. A worker has one session: a newer connection of the same life takes the place of the
older (its TCP connection may be long dead without either side knowing), an earlier life is refused.

Frozen workers are noticed by pings that stay unanswered, not by silence: a worker in a long evaluation is silent, too.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter, OrderedDict
from typing import Protocol

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web

from rex_operator.channel.gate import Gate
from rex_operator.channel.identity import Authenticator, Identity, Refused
from rex_operator.channel.session import Session
from rex_worker.protocol import MAX_MESSAGE_BYTES, PROTOCOL_VERSION, Down, Hello, Up, parse_up

log = logging.getLogger(__name__)

PATH = "/v1/channel"
HELLO_TIMEOUT_S = 10.0
AUTHENTICATION_TIMEOUT_S = 15.0
HEARTBEAT_S = 10.0
"""Seconds between pings; one that stays unanswered for half of that ends the session."""
CLOSE_TIMEOUT_S = 2.0
MAX_CONNECTIONS = 4096
MAX_UNPROVEN = 256
MAX_TOKEN_BYTES = 16 * 1024
MAX_RETIRED = 16_384
"""Earlier lives that are remembered in order to be refused."""


class ChannelHandler(Protocol):
    """What is told of the sessions: called in the event loop, in order, and must return quickly."""

    def opened(self, identity: Identity, hello: Hello) -> None:
        """A worker connected, or connected again."""

    def received(self, identity: Identity, message: Up) -> None:
        """A worker said something."""

    def closed(self, identity: Identity) -> None:
        """The worker's session is over, and no other has taken its place."""


class ChannelServer:
    """Listens for workers. ``counters`` tells what was refused, malformed or replaced, by cause."""

    def __init__(
        self,
        authenticate: Authenticator,
        handler: ChannelHandler,
        *,
        max_connections: int = MAX_CONNECTIONS,
        max_unproven: int = MAX_UNPROVEN,
        hello_timeout_s: float = HELLO_TIMEOUT_S,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self._authenticate = authenticate
        self._handler = handler
        self._max_connections = max_connections
        self._max_unproven = max_unproven
        self._hello_timeout_s = hello_timeout_s
        self._heartbeat_s = heartbeat_s
        self._sessions: dict[tuple[str, str], Session] = {}
        self._retired: OrderedDict[Identity, None] = OrderedDict()
        self._unproven = 0
        self._closing: set[asyncio.Task[None]] = set()
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self.counters: Counter[str] = Counter()

    async def start(self, host: str, port: int, ssl_context: ssl.SSLContext | None = None) -> int:
        """Listen on ``host:port`` (0: any free port) and return the port."""
        gate = Gate(self._max_connections, self._hello_timeout_s, self.counters)
        app = web.Application(client_max_size=MAX_MESSAGE_BYTES, middlewares=[gate.middleware()])
        self.add_to(app)
        self._runner = web.AppRunner(app, access_log=None, lingering_time=0, keepalive_timeout=5, auto_decompress=False)
        await self._runner.setup()
        gate.server = self._runner.server
        self._listener = await asyncio.get_running_loop().create_server(gate, host, port, ssl=ssl_context, backlog=1024)
        return int(self._listener.sockets[0].getsockname()[1])

    def add_to(self, app: web.Application) -> None:
        """Mount the channel into an application that is served elsewhere."""
        app.router.add_get(PATH, self._serve)

    async def stop(self) -> None:
        """Hang up on everybody and listen no more; workers train on and look for the next operator."""
        if self._listener is not None:
            self._listener.close()
        sessions = list(self._sessions.values())
        await asyncio.gather(*(session.close(WSCloseCode.GOING_AWAY, "operator goes") for session in sessions))
        if self._runner is not None:
            await self._runner.cleanup()

    def send(self, identity: Identity, message: Down) -> bool:
        """Queue a message for exactly this life; False when it has no session."""
        session = self._sessions.get((identity.job, identity.worker_id))
        if session is None or session.identity != identity:
            return False
        session.send(message)
        return True

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        token = self._token(request)
        if self._unproven >= self._max_unproven:
            self.counters["refused-busy"] += 1
            raise web.HTTPServiceUnavailable(text="too many workers are connecting; try again\n")
        socket = web.WebSocketResponse(
            timeout=CLOSE_TIMEOUT_S, max_msg_size=MAX_MESSAGE_BYTES, compress=False, heartbeat=self._heartbeat_s
        )
        if not socket.can_prepare(request).ok:
            self.counters["refused-not-websocket"] += 1
            raise web.HTTPBadRequest(text="this address takes WebSocket connections of REX workers only\n")
        self._unproven += 1
        try:
            await socket.prepare(request)
            hello = await self._hello(socket)
            identity = await self._prove(token, hello)
        except (Refused, ValueError, TimeoutError) as error:
            reason = _reason(error)
            self.counters["refused"] += 1
            log.info("connection refused: %s", reason)
            await socket.close(code=WSCloseCode.POLICY_VIOLATION, message=reason.encode()[:120])
            return socket
        finally:
            self._unproven -= 1
        await self._converse(identity, hello, socket)
        return socket

    def _token(self, request: web.Request) -> str:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_BYTES:
            self.counters["refused-no-token"] += 1
            raise web.HTTPUnauthorized(text="a bearer token is needed\n")
        return token.strip()

    async def _hello(self, socket: web.WebSocketResponse) -> Hello:
        async with asyncio.timeout(self._hello_timeout_s):
            first = await socket.receive()
        if first.type is not WSMsgType.TEXT:
            raise Refused("the first message must be a Hello")
        hello = parse_up(first.data)
        if not isinstance(hello, Hello):
            raise Refused("the first message must be a Hello")
        if hello.protocol != PROTOCOL_VERSION:
            raise Refused(
                f"protocol {hello.protocol} is not spoken here, only {PROTOCOL_VERSION}; use matching versions"
            )
        return hello

    async def _prove(self, token: str, hello: Hello) -> Identity:
        async with asyncio.timeout(AUTHENTICATION_TIMEOUT_S):
            identity = await self._authenticate(token, hello)
        if identity != Identity.claimed(hello):
            raise Refused("a worker speaks only for itself")
        if identity in self._retired:
            raise Refused("a newer life of this worker is connected")
        return identity

    async def _converse(self, identity: Identity, hello: Hello, socket: web.WebSocketResponse) -> None:
        session = Session(identity, socket)
        self._take_place(session)
        self._handler.opened(identity, hello)
        try:
            async for message in socket:
                if self._sessions.get((identity.job, identity.worker_id)) is not session:
                    break
                if message.type is WSMsgType.ERROR and isinstance(message.data, TimeoutError):
                    self.counters["frozen"] += 1
                    log.info("%s does not answer; session closed", identity)
                    break
                self._handler.received(identity, _read(message))
                await asyncio.sleep(0)  # one that floods must not keep the loop from the others
            if socket.close_code == WSCloseCode.MESSAGE_TOO_BIG:
                self.counters["malformed"] += 1
        except _MalformedError as error:
            self.counters["malformed"] += 1
            log.warning("%s: malformed message (%s), session closed", identity, error)
            await session.close(WSCloseCode.INVALID_TEXT, "malformed message")
        finally:
            await session.end()
            if self._sessions.get((identity.job, identity.worker_id)) is session:
                del self._sessions[identity.job, identity.worker_id]
                self._handler.closed(identity)

    def _take_place(self, session: Session) -> None:
        """Make this the worker's session; the one before it, if any, ends."""
        key = (session.identity.job, session.identity.worker_id)
        before = self._sessions.get(key)
        self._sessions[key] = session
        if before is None:
            return
        self.counters["replaced"] += 1
        if before.identity != session.identity:
            self._retired[before.identity] = None
            while len(self._retired) > MAX_RETIRED:
                self._retired.popitem(last=False)
            self._handler.closed(before.identity)
        closing = asyncio.create_task(before.close(WSCloseCode.GOING_AWAY, "another connection took its place"))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


class _MalformedError(Exception):
    """What a worker sent is none of the messages that it may send."""


def _read(message: WSMessage) -> Up:
    if message.type is not WSMsgType.TEXT:
        raise _MalformedError("not text")
    try:
        news = parse_up(message.data)
    except ValueError as error:
        raise _MalformedError(type(error).__name__) from None
    if isinstance(news, Hello):
        raise _MalformedError("a second Hello")
    return news


def _reason(error: Exception) -> str:
    """What the sender and the log are told; never what the sender said."""
    if isinstance(error, Refused):
        return str(error)
    return "too slow" if isinstance(error, TimeoutError) else "the first message is not a valid Hello"
