"""One authenticated connection to one life of a worker."""

from __future__ import annotations

import asyncio
import logging

from aiohttp import ClientConnectionResetError, WSCloseCode, web

from rex_operator.channel.identity import Identity
from rex_operator.channel.outbox import Outbox
from rex_worker.protocol import Down, encode

log = logging.getLogger(__name__)

SEND_TIMEOUT_S = 20.0
"""A worker that takes nothing for this long is cut off; it reconnects and is told the newest decisions again."""


class Session:
    """A socket and what waits to be sent over it."""

    def __init__(self, identity: Identity, socket: web.WebSocketResponse) -> None:
        self.identity = identity
        self.outbox = Outbox()
        self._socket = socket
        self._writer = asyncio.create_task(self._write(), name=f"channel-writer-{identity.worker_id}")

    def send(self, message: Down) -> None:
        """Queue a message; never waits."""
        self.outbox.put(message)

    async def close(self, code: int = WSCloseCode.OK, reason: str = "") -> None:
        """Hang up."""
        await self._socket.close(code=code, message=reason.encode()[:120])

    async def end(self) -> None:
        """Stop sending; the socket is closed or about to be."""
        self._writer.cancel()
        await asyncio.gather(self._writer, return_exceptions=True)

    async def _write(self) -> None:
        while True:
            message = await self.outbox.get()
            try:
                text = encode(message)
            except ValueError:
                log.exception("%s: a %s is too long for the channel and is not sent", self.identity, message.kind)
                continue
            try:
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    await self._socket.send_str(text)
            except (TimeoutError, ClientConnectionResetError, ConnectionError):
                log.info("%s: cannot send to it; hanging up", self.identity)
                await self.close(WSCloseCode.GOING_AWAY, "reads too slowly")
                return
