"""What a connection may cost before it has said anything: one place of a bounded number, for a bounded time.

An HTTP server waits for a request for as long as the client cares to trickle it, one byte a second. Here the listener
itself counts the connections and hangs up on those that have not sent a whole request in time.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware


class Gate:
    """Makes the protocol of each new connection; to be given to ``loop.create_server``."""

    def __init__(self, max_connections: int, request_timeout_s: float, counters: Counter[str]) -> None:
        self._max_connections = max_connections
        self._request_timeout_s = request_timeout_s
        self._counters = counters
        self._timers: dict[asyncio.BaseProtocol, asyncio.TimerHandle] = {}
        self.server: web.Server | None = None

    def __call__(self) -> asyncio.BaseProtocol:
        """Let one more connection in, or the one that hangs up at once."""
        if self.server is None or len(self.server.connections) >= self._max_connections:
            self._counters["refused-connection"] += 1
            return _NoRoom()
        protocol = self.server()
        loop = asyncio.get_running_loop()
        self._timers[protocol] = loop.call_later(self._request_timeout_s, self._too_slow, protocol)
        return protocol

    def middleware(self) -> Middleware:
        """Notes that a connection's request is whole, and lets no connection make a second one."""

        @web.middleware
        async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
            timer = self._timers.pop(request.protocol, None)
            if timer is not None:
                timer.cancel()
            try:
                response = await handler(request)
            except web.HTTPException as error:
                error.force_close()
                raise
            response.force_close()
            return response

        return note

    def _too_slow(self, protocol: web.RequestHandler) -> None:
        del self._timers[protocol]
        if protocol.transport is not None:
            self._counters["slow-request"] += 1
            protocol.transport.abort()


class _NoRoom(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
