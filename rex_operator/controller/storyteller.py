"""Turns what was decided into events that a person can follow: what happened to the job, and why."""

from __future__ import annotations

from typing import get_args

from rex_operator.controller.events import Recorder
from rex_operator.controller.names import Owner
from rex_operator.controller.observation import Decision, Observation
from rex_operator.controller.observe import Memory
from rex_operator.planning import DecisionRecord
from rex_operator.planning.types import DecisionKind

_TOLD = frozenset(get_args(DecisionKind)) - {"membership"}


class Storyteller:
    """Tells each thing once per pass that brought it; the recorder drops repeats."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def tell(self, seen: Observation, decision: Decision, memory: Memory) -> None:
        """Tell what this pass found and decided."""
        owner, status = seen.owner, decision.status
        for failure in decision.failures:
            note = f"worker {failure.worker} (pod {failure.pod}): {failure.message or failure.reason}"
            self._recorder.tell(owner, "Warning", "WorkerFailed", note)
        if status.phase != memory.phase and (memory.phase or status.phase != seen.status.phase):
            bad = status.phase == "Failed"
            self._recorder.tell(owner, "Warning" if bad else "Normal", status.phase, status.message or status.reason)
        memory.phase = status.phase
        scheduled = status.condition("Scheduled")
        if scheduled is not None and scheduled.status == "False" and not status.finished:
            self._recorder.tell(owner, "Warning", scheduled.reason, scheduled.message)
        if seen.blocked:
            self._recorder.tell(owner, "Warning", "PodsRefused", seen.blocked)
        if seen.view is not None and seen.view.checkpoint_trouble:
            self._recorder.tell(owner, "Warning", "CheckpointFailed", seen.view.checkpoint_trouble)
        for pod in decision.drain:
            self._recorder.tell(owner, "Normal", "Draining", f"worker {pod.worker_id} leaves the group as planned")
        self._tell_plans(seen)

    def tell_refusal(self, owner: Owner, problem: str) -> None:
        """Tell that the job cannot be read."""
        self._recorder.tell(owner, "Warning", "Invalid", problem)

    def _tell_plans(self, seen: Observation) -> None:
        """Tell the decisions after the newest that the status lists; what it listed was told when it was written."""
        listed = {(entry.step, entry.kind, entry.reason) for entry in seen.status.decisions}
        fresh: list[DecisionRecord] = []
        for record in seen.view.decisions if seen.view else ():
            if (record.step, record.kind, record.reason) in listed:
                fresh.clear()
            elif record.kind in _TOLD:
                fresh.append(record)
        for record in fresh:
            self._recorder.tell(seen.owner, "Normal", _reason(record), _note(record))


def _reason(record: DecisionRecord) -> str:
    return "Plan" + "".join(part.capitalize() for part in record.kind.split("-"))


def _note(record: DecisionRecord) -> str:
    said, evidence, cost = f"step {record.step}: {record.reason}", record.evidence, record.cost
    if evidence is not None:
        hoped = "" if record.expectation is None else f", expected {record.expectation:+.1%}"
        p_value = min(evidence.p_better, evidence.p_worse)
        said += (
            f" (effect {evidence.effect:+.1%}{hoped}, p = {p_value:.3g}, {evidence.n_reference} against"
            f" {evidence.n_trial} steps)"
        )
    if cost is not None:
        said += f" The trial took {cost.steps} steps in {cost.seconds:.0f} s."
    return said
