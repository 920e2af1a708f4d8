"""/healthz, /readyz and /metrics on a port of their own, answered by a thread of their own.

A probe must tell a busy operator from a dead one: the answer never waits for the event loop, and is "no" when the loop
has not turned for long. Standbys are ready. The port is read-only and takes nothing but these three paths.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import generate_latest

from rex_operator.controller.metrics import REGISTRY

logger = logging.getLogger(__name__)

BEAT_S = 1.0
DEAD_S = 30.0
METRICS_S = 10.0


class Health:
    """What the probes are told."""

    def __init__(self) -> None:
        self.beat = time.monotonic()
        self.ready = False
        self._server: ThreadingHTTPServer | None = None

    def alive(self) -> bool:
        """Whether the event loop has turned lately."""
        return time.monotonic() - self.beat < DEAD_S

    async def beat_forever(self) -> None:
        """Prove from inside the loop that it turns."""
        while True:
            self.beat = time.monotonic()
            await asyncio.sleep(BEAT_S)

    def serve(self, port: int) -> int:
        """Answer on that port (0: any) from a thread; returns the port."""
        loop = asyncio.get_running_loop()
        self._server = ThreadingHTTPServer(("", port), _handler(self, loop))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()
        return self._server.server_address[1]

    def close(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


async def _render() -> bytes:
    return generate_latest(REGISTRY)


def _handler(health: Health, loop: asyncio.AbstractEventLoop) -> type[BaseHTTPRequestHandler]:
    def answer(path: str) -> tuple[int, bytes, str]:
        if path == "/healthz":
            return (200, b"ok\n", "text/plain") if health.alive() else (503, b"event loop stands still\n", "text/plain")
        if path == "/readyz":
            return (200, b"ok\n", "text/plain") if health.ready else (503, b"not ready\n", "text/plain")
        if path == "/metrics":
            # Coordinators belong to the loop's thread, so the figures are read there.
            text = asyncio.run_coroutine_threadsafe(_render(), loop).result(METRICS_S)
            return 200, text, "text/plain; version=0.0.4; charset=utf-8"
        return 404, b"not found\n", "text/plain"

    class Handler(BaseHTTPRequestHandler):
        timeout = 10
        server_version, sys_version = "rex", ""

        def do_GET(self) -> None:
            try:
                status, body, kind = answer(self.path.partition("?")[0])
            except Exception:
                logger.exception("A probe could not be answered")
                status, body, kind = 500, b"error\n", "text/plain"
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return

    return Handler
