"""All that a run writes down and shows: its record, its summary, its state, and the lines for who watches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from rex_operator.jobs import JobView
from rex_operator.local.recorder import Recorder
from rex_operator.local.rundir import RunDirectory, write_whole
from rex_operator.local.summary import Tally, summarize
from rex_operator.planning import DecisionRecord
from rex_worker.protocol import Metrics


class Observer(Protocol):
    """Who shows the run to people. Called in the event loop; must return quickly."""

    def event(self, event: str, message: str) -> None:
        """Something happened that people may want to know."""

    def decided(self, record: DecisionRecord) -> None:
        """The planner decided something."""

    def progress(self, view: JobView, seconds: float) -> None:
        """The job as it stands, several times a second."""


class Book:
    """The record of a run and its readers. ``clock`` gives the seconds of training, over all parts of the run."""

    def __init__(self, directory: RunDirectory, observer: Observer, clock: Callable[[], float]) -> None:
        self.record = Recorder(directory.record, clock)
        self._tally = Tally.read(directory.record)
        self._directory, self._observer, self._clock = directory, observer, clock

    def event(self, event: str, message: str) -> None:
        """Something happened."""
        self.record.event(event, message)
        self._observer.event(event, message)

    def metrics(self, message: Metrics) -> None:
        """The script reported its own figures."""
        self.record.metrics(message)
        self._tally.metrics(message.values)

    def decisions(self, records: Iterable[DecisionRecord]) -> None:
        """Take note of the decisions that are new."""
        for record in self.record.decisions(records):
            self._tally.decision(record)
            self._observer.decided(record)

    def progress(self, view: JobView) -> None:
        """Take note of where the job stands."""
        self.record.step(view)
        self._observer.progress(view, self._clock())

    def conclude(
        self, view: JobView, *, outcome: str, reason: str, message: str, restarts: tuple[int, int]
    ) -> dict[str, Any]:
        """Write the end and the summary; return the summary."""
        summary = summarize(
            view, self._tally, seconds=self._clock(), restarts=restarts, outcome=outcome, message=message
        )
        self.record.write("end", success=outcome == "succeeded", reason=reason, message=message, summary=summary)
        write_whole(self._directory.summary, json.dumps(summary, indent=2, allow_nan=False) + "\n")
        return summary

    def close(self) -> None:
        """Nothing more is written."""
        self.record.close()
