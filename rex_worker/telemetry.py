"""Step reports on their way to the operator: never in training's way, never more than a bounded queue of them.

While the operator is away reports pile up. What it needs then is the trend, not each step, so a full queue is
thinned to every second report and the rest is counted; the count travels with the next message.
"""

from __future__ import annotations

import threading
from collections import deque
from itertools import islice

from rex_worker.protocol import StepReport, Steps

CAPACITY = 2048
BATCH = 100
"""Reports per message, well inside the channel's 64 KiB."""


class TelemetryQueue:
    """Bounded queue of (generation, report); the training thread adds, the channel's thread takes."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._queue: deque[tuple[int, StepReport]] = deque()
        self._dropped = 0

    def add(self, generation: int, report: StepReport) -> None:
        """Append a report; thin the queue when it is full."""
        with self._lock:
            if len(self._queue) >= self._capacity:
                kept = deque(islice(self._queue, 1, None, 2))
                self._dropped += len(self._queue) - len(kept)
                self._queue = kept
            self._queue.append((generation, report))

    def take(self) -> Steps | None:
        """Remove the oldest reports of one generation, at most ``BATCH``; None when there are none."""
        with self._lock:
            if not self._queue:
                return None
            generation = self._queue[0][0]
            reports: list[StepReport] = []
            while self._queue and self._queue[0][0] == generation and len(reports) < BATCH:
                reports.append(self._queue.popleft()[1])
            dropped, self._dropped = self._dropped, 0
        return Steps(generation=generation, steps=reports, dropped=dropped)

    def lost(self, message: Steps) -> None:
        """Count a message that could not be sent."""
        with self._lock:
            self._dropped += message.dropped + len(message.steps)
