"""The reports of the workers put together into steps of the group.

Each worker tells its own view of a step, late, early or never. The group's loss is the mean over samples, not over
workers, and its step time that of the slowest; both can be told only when every worker has spoken. What is still
incomplete is kept for a moment and bounded.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rex_worker.protocol import StepReport

MAX_OPEN = 64


@dataclass(frozen=True)
class GroupStep:
    """One optimiser step as the whole group ran it. Times in seconds, per worker id."""

    generation: int
    step: int
    samples: int
    epoch: int
    version: int
    local_batches: dict[str, int]
    compute_s: dict[str, float]
    wait_s: dict[str, float]
    """For the others; of a worker that is not in ``comm_s``, for their gradients as well."""
    comm_s: dict[str, float]
    """For the sum of all gradients, once all had computed theirs; of the workers that can tell."""
    step_s: float
    loss: float | None
    """Mean over the samples; None when a worker's was not finite."""
    diverged: bool

    @property
    def global_batch(self) -> int:
        """Samples of the step."""
        return sum(self.local_batches.values())


class StepTable:
    """Collects reports until a step is whole."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], dict[str, StepReport]] = {}
        self.last: GroupStep | None = None

    def add(self, worker_id: str, generation: int, report: StepReport, members: Collection[str]) -> GroupStep | None:
        """Take in one report; return the group's step if ``members`` have now all told of it."""
        at = (generation, report.step)
        if self.last is not None and at <= (self.last.generation, self.last.step):
            return None
        row = self._open.setdefault(at, {})
        row[worker_id] = report
        if not all(member in row for member in members):
            while len(self._open) > MAX_OPEN:
                del self._open[min(self._open)]
            return None
        self.last = _together(generation, {member: row[member] for member in members})
        self._open = {key: value for key, value in self._open.items() if key > at}
        return self.last


def _together(generation: int, row: dict[str, StepReport]) -> GroupStep:
    first = next(iter(row.values()))
    told = [(report.loss, report.local_batch) for report in row.values() if report.loss is not None]
    weight = sum(samples for _, samples in told)
    diverged = any(report.diverged for report in row.values())
    return GroupStep(
        generation=generation,
        step=first.step,
        samples=max(report.samples for report in row.values()),
        epoch=first.epoch,
        version=max(report.plan_version for report in row.values()),
        local_batches={worker: report.local_batch for worker, report in row.items()},
        compute_s={worker: report.compute_s for worker, report in row.items()},
        wait_s={worker: report.wait_s for worker, report in row.items()},
        comm_s={worker: report.comm_s for worker, report in row.items() if report.comm_s is not None},
        step_s=max(report.step_s for report in row.values()),
        loss=sum(loss * samples for loss, samples in told) / weight if weight and not diverged else None,
        diverged=diverged,
    )
