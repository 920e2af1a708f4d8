"""What a coordinator wants done: its whole effect on the world.

The coordinator is pure, so it answers each event with a list of these; a shell (local or controller) carries them out
in order. None of them needs an answer at once, and each may be carried out late or, after a crash, not at all: the
coordinator that is restored from its saved state comes to the same wish again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from rex_operator.planning import SearchRequest
from rex_worker.protocol import Down


@dataclass(frozen=True)
class Send:
    """Push ``message`` to one life of a worker; to nobody when that life has no open session."""

    worker_id: str
    incarnation: str
    message: Down


@dataclass(frozen=True)
class RunSearch:
    """Run ``planning.run_search(request)`` off the event loop and report with ``Coordinator.search_finished``."""

    request: SearchRequest


@dataclass(frozen=True)
class Save:
    """Something was decided: keep ``Coordinator.saved()`` before a restart could forget it."""


@dataclass(frozen=True)
class Ended:
    """The job is over, once and for all. ``reason`` is CamelCase for conditions, ``message`` a sentence for people."""

    success: bool
    reason: str
    message: str


Action: TypeAlias = Send | RunSearch | Save | Ended
