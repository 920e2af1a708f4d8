"""An observer for benchmarks that read what they need from a run's record."""

from __future__ import annotations

from rex_operator.jobs import JobView
from rex_operator.planning import DecisionRecord


class Silent:
    """Watches a run and says nothing."""

    def event(self, event: str, message: str) -> None:
        """Ignore an event."""

    def decided(self, record: DecisionRecord) -> None:
        """Ignore a decision."""

    def progress(self, view: JobView, seconds: float) -> None:
        """Ignore progress."""
