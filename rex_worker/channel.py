"""The worker's end of the channel: its own thread, so that neither a slow nor an absent operator ever delays a step.

The connection is opened by the worker and re-opened for as long as the process lives, with a capped back-off and
jitter (a thousand workers must not return in one instant). Each connection begins with Hello and whatever of the
worker's standing the operator may have missed, so a restarted operator learns where everybody is. Telemetry may be
thinned (``rex_worker.telemetry``), decisions and notices are kept until they are sent.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from rex_worker.directives import Directives
from rex_worker.environment import Environment
from rex_worker.errors import ConfigurationError
from rex_worker.protocol import (
    MAX_DOWN_BYTES,
    Ack,
    Checkpointed,
    GroupLost,
    Hello,
    Leaving,
    Message,
    OutOfMemory,
    Ready,
    encode,
    parse_down,
)
from rex_worker.telemetry import TelemetryQueue

log = logging.getLogger("rex.channel")

FLUSH_S = 0.2
"""Telemetry is sent this often."""
HEARTBEAT_S = 5.0
FIRST_BACKOFF_S = 0.2
MAX_BACKOFF_S = 10.0
_MAX_NOTICES = 1024


@dataclass
class Standing:
    """Where the process stands, said again on each connection. Written by the training thread, one field at a time."""

    generation: int = 0
    plan_version: int = 0
    step: int = 0
    ready: Ready | None = None
    """Set while the worker waits for its first group."""
    leaving: Leaving | None = None
    ack: Ack | None = None
    group_lost: GroupLost | None = None
    checkpointed: Checkpointed | None = None
    out_of_memory: OutOfMemory | None = None

    def notices(self) -> list[Message]:
        """What to repeat after Hello."""
        said = (self.ready, self.ack, self.group_lost, self.checkpointed, self.out_of_memory, self.leaving)
        return [message for message in said if message is not None]


@dataclass(frozen=True)
class Introduction:
    """The part of Hello that never changes."""

    device_memory_bytes: int
    store_port: int


class Channel:
    """A connection to the operator, kept by a thread of its own. ``send`` and ``telemetry`` never block."""

    def __init__(
        self, environment: Environment, introduction: Introduction, directives: Directives, standing: Standing
    ) -> None:
        if environment.channel_url is None:
            raise ConfigurationError("REX_CHANNEL_URL is not set; without it there is no channel")
        self._environment = environment
        self._url = environment.channel_url
        self._introduction = introduction
        self._directives = directives
        self._standing = standing
        self._ssl = _ssl_context(environment)
        _read_token(environment.token_file)
        self.telemetry = TelemetryQueue()
        self._notices: deque[Message] = deque(maxlen=_MAX_NOTICES)
        self._loop = asyncio.new_event_loop()
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="rex-channel", daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        """Queue a notice; it is sent in order, after a reconnect if need be."""
        self._notices.append(message)
        self._signal(self._wake)

    def close(self, timeout: float) -> bool:
        """Send what is queued and hang up; False when that was not possible within ``timeout`` seconds."""
        self._closing = True
        self._signal(self._hurry)
        self._signal(self._wake)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _signal(self, event: asyncio.Event) -> None:
        with suppress(RuntimeError):  # the thread may have said all and closed its loop at this very moment
            self._loop.call_soon_threadsafe(event.set)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._stay_connected())
        finally:
            self._loop.close()

    async def _stay_connected(self) -> None:
        failures = 0
        async with aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.ws_connect(
                        self._url,
                        headers=self._headers(),
                        ssl=self._ssl if self._ssl is not None else True,
                        heartbeat=HEARTBEAT_S,
                        max_msg_size=MAX_DOWN_BYTES,
                        compress=0,
                    ) as socket:
                        if failures:
                            log.info("operator reached again")
                        begun = self._loop.time()
                        if await self._converse(socket):
                            return
                        log.warning("the operator hung up (code %s); connecting again", socket.close_code)
                        # One that hangs up at once refuses us: asking at full speed would change nothing.
                        if self._loop.time() - begun >= MAX_BACKOFF_S:
                            failures = 0
                except aiohttp.WSServerHandshakeError as error:
                    log.warning("the operator refused the connection: HTTP %s; trying again", error.status)
                except (aiohttp.ClientError, OSError, TimeoutError, ConfigurationError) as error:
                    if failures in (0, 5) or failures % 50 == 0:
                        log.warning("operator not reachable (%s: %s); trying on", type(error).__name__, error)
                delay = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(failures, 10)) * random.uniform(0.5, 1.0)
                failures += 1
                await self._pause(delay)

    async def _pause(self, delay: float) -> None:
        """Sleep through a back-off; a closing process tries often, for as long as ``close`` lets it."""
        if self._closing:
            await asyncio.sleep(FIRST_BACKOFF_S)
        else:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), delay)

    async def _converse(self, socket: aiohttp.ClientWebSocketResponse) -> bool:
        """Talk until the connection ends; True when all is said and the process is closing."""
        await socket.send_str(encode(self._hello()))
        if self._environment.reached_file is not None:
            with suppress(OSError):  # a full disk must not keep the worker from its operator
                self._environment.reached_file.touch()
        for notice in self._standing.notices():
            await socket.send_str(encode(notice))
        reader = asyncio.ensure_future(self._listen(socket))
        try:
            while not reader.done():
                await self._send_queued(socket)
                if self._closing and not self._notices:
                    await socket.close()
                    return True
                self._wake.clear()
                if not self._notices:
                    waker = asyncio.ensure_future(self._wake.wait())
                    await asyncio.wait({waker, reader}, timeout=FLUSH_S, return_when=asyncio.FIRST_COMPLETED)
                    waker.cancel()
            return False
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _send_queued(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while self._notices:
            await socket.send_str(encode(self._notices[0]))
            self._notices.popleft()
        while (steps := self.telemetry.take()) is not None:
            try:
                await socket.send_str(encode(steps))
            except (OSError, aiohttp.ClientError):
                self.telemetry.lost(steps)
                raise

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for frame in socket:
            if frame.type is not aiohttp.WSMsgType.TEXT:
                continue
            try:
                self._directives.receive(parse_down(frame.data))
            except ValueError as error:
                log.warning("a message of the operator was not understood and is ignored: %s", str(error)[:300])

    def _hello(self) -> Hello:
        standing = self._standing
        return Hello(
            job=self._environment.job,
            worker_id=self._environment.worker_id,
            incarnation=self._environment.incarnation,
            device=self._environment.device,
            device_memory_bytes=self._introduction.device_memory_bytes,
            address=self._environment.address,
            store_port=self._introduction.store_port,
            generation=standing.generation,
            plan_version=standing.plan_version,
            step=standing.step,
            exits=list(self._environment.exits),
        )

    def _headers(self) -> dict[str, str]:
        token = self._environment.token or _read_token(self._environment.token_file)
        return {"Authorization": f"Bearer {token}"} if token else {}


def _read_token(path: Path | None) -> str:
    """Read the token afresh: a projected one is renewed in place while the process runs."""
    if path is None:
        return ""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"REX_TOKEN_FILE: cannot read {path} ({type(error).__name__})") from None


def _ssl_context(environment: Environment) -> ssl.SSLContext | None:
    if environment.ca:
        return ssl.create_default_context(cadata=environment.ca)
    if environment.ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=environment.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"REX_CA_FILE: {environment.ca_file} is not a readable CA bundle ({type(error).__name__})"
        ) from None
