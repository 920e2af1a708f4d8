"""What waits to be sent to one worker: bounded, and never a decision lost.

A worker needs only the newest word of each kind: a later Membership or Plan makes the earlier one meaningless. So the
queue has one place per kind, and a slow reader costs no memory.
"""

from __future__ import annotations

import asyncio

from rex_worker.protocol import Down, Membership, Plan


class Outbox:
    """The newest message of each kind, in the order in which they were decided."""

    def __init__(self) -> None:
        self._waiting: dict[str, Down] = {}
        self._filled = asyncio.Event()
        self.replaced = 0
        """Messages that a newer one made meaningless before they were sent."""

    def put(self, message: Down) -> None:
        """Queue a message; it takes the place of an older one of its kind."""
        if self._waiting.pop(message.kind, None) is not None:
            self.replaced += 1
        plan = self._waiting.get("Plan")
        if isinstance(message, Membership) and isinstance(plan, Plan) and plan.generation < message.generation:
            del self._waiting["Plan"]
            self.replaced += 1
        self._waiting[message.kind] = message
        self._filled.set()

    async def get(self) -> Down:
        """Wait for the next message to send."""
        while not self._waiting:
            self._filled.clear()
            await self._filled.wait()
        return self._waiting.pop(next(iter(self._waiting)))

    def __len__(self) -> int:
        return len(self._waiting)
