"""The keys that need reconciling, each at most once in the queue and never twice at work.

Any number of events about one job become one pass over it; a pass that is overtaken by an event is followed by one
more. Failures wait longer each time. Namespaces take turns, so that a tenant with a thousand jobs cannot starve one
with one.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict, deque
from dataclasses import dataclass

_FIRST_RETRY_S = 0.5
_LAST_RETRY_S = 60.0


@dataclass(frozen=True, order=True)
class Key:
    """A job by its namespace and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class WorkQueue:
    """A queue for the loop it is used in."""

    def __init__(self) -> None:
        self._ready: OrderedDict[str, deque[Key]] = OrderedDict()
        self._queued: set[Key] = set()
        self._working: set[Key] = set()
        self._again: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._queued)

    def add(self, key: Key) -> None:
        """Have the key reconciled as soon as there is a worker for it."""
        if timer := self._timers.pop(key, None):
            timer.cancel()
        if key in self._working:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._ready.setdefault(key.namespace, deque()).append(key)
            self._wake.set()

    def add_after(self, key: Key, seconds: float) -> None:
        """Have the key reconciled in that time at the latest; an earlier appointment stands."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= loop.time() + seconds:
            return
        if timer is not None:
            timer.cancel()
        self._timers[key] = loop.call_later(seconds, self.add, key)

    async def get(self) -> Key:
        """The next key, which counts as at work until ``done`` or ``failed``."""
        while not self._ready:
            self._wake.clear()
            await self._wake.wait()
        namespace, keys = self._ready.popitem(last=False)
        key = keys.popleft()
        if keys:
            self._ready[namespace] = keys
        self._queued.discard(key)
        self._working.add(key)
        return key

    def done(self, key: Key) -> None:
        """The pass over the key succeeded."""
        self._failures.pop(key, None)
        self._release(key)

    def failed(self, key: Key) -> float:
        """The pass over the key failed; it is tried again after the returned number of seconds, longer each time."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        delay = min(_LAST_RETRY_S, _FIRST_RETRY_S * 2.0 ** min(count, 20)) * random.uniform(0.8, 1.2)
        self._release(key)
        if key not in self._queued:
            self.add_after(key, delay)
        return delay

    def forget(self, key: Key) -> None:
        """The job is gone: no appointments for it any more."""
        self._failures.pop(key, None)
        if timer := self._timers.pop(key, None):
            timer.cancel()

    def _release(self, key: Key) -> None:
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)
