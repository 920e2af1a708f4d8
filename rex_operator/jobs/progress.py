"""How far the training has come, told from the workers' reports.

Reports arrive out of order, doubled, and sometimes from a generation that is over. After the loss of all workers the
count even goes back to the last checkpoint: so within a generation progress only grows, and a newer generation sets it.
"""

from __future__ import annotations

from collections.abc import Collection

from rex_operator.jobs.steps import StepTable
from rex_worker.protocol import Metrics, Ready, StepReport

MAX_METRICS = 64


class Progress:
    """Step and sample counts, loss and the script's own figures of one job."""

    def __init__(self, step: int, samples: int, total_samples: int, steps_lost: int = 0, begun: int = 0) -> None:
        self.step, self.samples, self.total_samples = step, samples, total_samples
        self.steps_lost = steps_lost
        """Applied steps whose effect was lost, over the job's life: since a checkpoint it went back to."""
        self._begun = begun
        """The newest generation whose first step is known: workers repeat what they told an operator before."""
        self.generation = 0
        self.moved_at = float("-inf")
        """When a new step was last reported, on the coordinator's clock."""
        self.loss: float | None = None
        self.diverged = False
        self.metrics: dict[str, float] = {}
        self.table = StepTable()

    def ready(self, message: Ready) -> None:
        """Learn the length of the run from a worker whose data is built."""
        self.total_samples = max(self.total_samples, message.total_samples)

    def begins(self, generation: int, step: int) -> None:
        """Learn the first step of a generation: those from there on that were applied before are lost."""
        if generation > max(self._begun, self.generation):
            self._begun = generation
            self.steps_lost += max(0, self.step - (step - 1))

    def report(self, message: Metrics) -> None:
        """Keep the newest of the script's own figures, of a bounded number of names."""
        for name, value in message.values.items():
            if name in self.metrics or len(self.metrics) < MAX_METRICS:
                self.metrics[name] = value

    def add(self, worker_id: str, generation: int, report: StepReport, members: Collection[str], now: float) -> None:
        """Take in one step of one worker; ``members`` are the workers of its plan."""
        if generation < self.generation:
            return
        if generation > self.generation or report.step > self.step:
            self.generation, self.step, self.samples = generation, report.step, report.samples
            self.moved_at = now
        whole = self.table.add(worker_id, generation, report, members)
        if whole is not None:
            self.loss, self.diverged = whole.loss, whole.diverged
