"""How long to wait for others: as long as they are alive and busy, and no longer.

No fixed time-out is right for both an evaluation of minutes and a peer that is gone. The one who knows is the
operator: when it has named the next generation, the present one has no future, and a wait in it is given up soon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from rex_worker.errors import GroupLost

Superseded = Callable[[], bool]
"""Whether a newer generation has been named."""

PATIENCE_S = 2.0
"""A wait is given up this long after a newer generation was first seen: whoever is alive arrives within it."""
_LONGEST_PAUSE_S = 0.05


class Patience:
    """Ends a wait some time after it became clear that the group has no future."""

    def __init__(self, superseded: Superseded, seconds: float = PATIENCE_S) -> None:
        self._superseded = superseded
        self._seconds = seconds
        self._since: float | None = None

    def check(self) -> None:
        """Raise ``GroupLost`` when patience is at its end."""
        if self._since is None:
            self._since = time.monotonic() if self._superseded() else None
        elif time.monotonic() - self._since > self._seconds:
            raise GroupLost("a newer generation was named while this one waited")


def pauses() -> Iterator[float]:
    """Seconds to sleep between looks into a store, endlessly: short at first, as most waits are."""
    pause = 0.001
    while True:
        yield pause
        pause = min(_LONGEST_PAUSE_S, pause * 1.5)
