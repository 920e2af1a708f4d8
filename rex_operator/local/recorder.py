"""Writes down what happens in a run: one JSON object a line, each with ``t`` (seconds of training) and ``kind``.

The record is the only source of the report and of ``rex explain``, so it holds every decision, plan and membership, but
only a thinned line of steps: the longer a run, the sparser, so that a month fits the disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from rex_operator.jobs import GroupStep, JobView
from rex_operator.planning import DecisionRecord
from rex_worker.protocol import Membership, Metrics, Plan

MIN_INTERVAL_S = 0.2
SPARSER = 5000
"""After t seconds, step lines are at least t / SPARSER apart."""


class Recorder:
    """The record of one run. ``clock`` gives the seconds of training, over all parts of an interrupted run."""

    def __init__(self, file: Path, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._out: IO[str] = file.open("a", encoding="utf-8")
        if self._out.tell() and not _ends_whole(file):
            self._out.write("\n")  # the last line of a killed run is torn; it must not take the next one with it
        self._last_step: GroupStep | None = None
        self._step_at = float("-inf")
        self._generation = 0
        self._version = 0
        self._decision: DecisionRecord | None = None

    def write(self, kind: str, **fields: Any) -> None:
        """Write one line now."""
        line = json.dumps({"t": round(self._clock(), 3), "kind": kind, **fields}, allow_nan=False)
        self._out.write(line + "\n")
        self._out.flush()

    def event(self, event: str, message: str, **fields: Any) -> None:
        """Write down something that people may want to know."""
        self.write("event", event=event, message=message, **fields)

    def membership(self, message: Membership) -> None:
        """Write down a generation, once."""
        if message.generation > self._generation:
            self._generation = message.generation
            self.write("membership", **message.model_dump(mode="json", exclude={"kind"}))
            self.plan(message.plan)

    def plan(self, message: Plan) -> None:
        """Write down a plan, once."""
        if message.version > self._version:
            self._version = message.version
            self.write("plan", **message.model_dump(mode="json", exclude={"kind"}))

    def metrics(self, message: Metrics) -> None:
        """Write down the script's own figures."""
        self.write("metrics", **message.model_dump(mode="json", exclude={"kind"}))

    def decisions(self, records: Iterable[DecisionRecord]) -> list[DecisionRecord]:
        """Write down the decisions that are new, and return them."""
        fresh: list[DecisionRecord] = []
        for record in records:
            fresh.append(record)
            if record is self._decision:
                fresh.clear()
        for record in fresh:
            self.write("decision", decision=record.model_dump(mode="json"))
            self._decision = record
        return fresh

    def remember(self, records: Iterable[DecisionRecord]) -> None:
        """Take decisions of an earlier part of the run as written."""
        for record in records:
            self._decision = record

    def step(self, view: JobView) -> None:
        """Write down the newest step of the group, unless one was written a moment ago."""
        step, now = view.last_step, self._clock()
        if step is None or step is self._last_step or now - self._step_at < max(MIN_INTERVAL_S, now / SPARSER):
            return
        self._last_step, self._step_at = step, now
        self.write(
            "step",
            step=step.step,
            samples=step.samples,
            epoch=step.epoch,
            generation=step.generation,
            version=step.version,
            global_batch=step.global_batch,
            local_batches=step.local_batches,
            compute_s=step.compute_s,
            wait_s=step.wait_s,
            comm_s=step.comm_s,
            step_s=step.step_s,
            loss=step.loss,
            samples_per_s=view.samples_per_s,
            goodput=view.goodput,
            noise_scale=view.planner.noise_scale,
        )

    def close(self) -> None:
        """Finish the record."""
        self._out.close()


def _ends_whole(file: Path) -> bool:
    with file.open("rb") as back:
        back.seek(-1, 2)
        return back.read(1) == b"\n"
