"""All that is known of a job: workers, group, progress, checkpoints. News comes in, nothing is decided here.

What a worker says may be late, repeated, or of a plan that nobody made. Each message is weighed here once, so that the
coordinator can decide on facts.
"""

from __future__ import annotations

from collections.abc import Iterator

from rex_operator.api import RexJobSpec
from rex_operator.jobs.group import Group
from rex_operator.jobs.life import Life
from rex_operator.jobs.progress import Progress
from rex_operator.jobs.roster import Roster
from rex_operator.jobs.saved import SavedState
from rex_operator.planning import PlannerState
from rex_worker.protocol import (
    Ack,
    Checkpointed,
    CheckpointFailed,
    Failed,
    GroupLost,
    Hello,
    Leaving,
    Left,
    Metrics,
    Ready,
    StepReport,
    Steps,
    Up,
)


class Knowledge:
    """What is known of one job."""

    def __init__(self, spec: RexJobSpec, saved: SavedState, now: float) -> None:
        self.spec = spec
        self.roster = Roster()
        self.progress = Progress(saved.step, saved.samples, saved.total_samples, saved.steps_lost, saved.generation)
        self.group = Group.restored(spec.sync.mode, saved, self.roster, now)
        self.checkpoint_step, self.final_checkpoint = saved.checkpoint_step, saved.final_checkpoint
        self.checkpoint_trouble = ""
        """Why the newest checkpoint could not be written; empty once another one is safe."""

    @property
    def finishing(self) -> bool:
        """Whether the script has ended on some member while others are still at work (a final checkpoint, say)."""
        members = self.group.members
        return any(life.left == "finished" for life in members) and any(life.alive for life in members)

    @property
    def finished(self) -> bool:
        """Whether the script ran to its end and what it made is safe."""
        members = self.group.members
        safe = self.spec.checkpoint is None or self.final_checkpoint
        return safe and any(life.left == "finished" for life in members) and not any(life.alive for life in members)

    def take_in(self, life: Life, message: Up, now: float) -> None:
        """Learn from a message that needs no decision."""
        match message:
            case Ready():
                life.ready_at = now if life.ready_at is None else life.ready_at
                self.progress.ready(message)
            case Ack():
                self.progress.begins(message.generation, message.step)
                self._runs(life, message.generation, message.plan_version, message.step)
            case Metrics():
                self.progress.report(message)
            case CheckpointFailed():
                self._checkpoint_failed(message)
            case GroupLost():
                life.group_lost = max(life.group_lost, message.generation)
            case Leaving():
                life.leaving = True
            case Left():
                life.left = message.reason
                life.step, life.samples = max(life.step, message.step), max(life.samples, message.samples)
            case Failed():
                life.failed = message.error
            case Hello():
                self.roster.counters["second-hello"] += 1

    def checkpointed(self, message: Checkpointed) -> None:
        """A checkpoint is safe; an older one that is told late changes nothing."""
        if message.step >= self.checkpoint_step:
            self.checkpoint_trouble = ""
        self.checkpoint_step = max(self.checkpoint_step, message.step)
        self.final_checkpoint = self.final_checkpoint or message.final

    def _checkpoint_failed(self, message: CheckpointFailed) -> None:
        if message.resumed is not None:
            if message.resumed < self.checkpoint_step <= message.step:
                self.checkpoint_step = message.resumed
            self.checkpoint_trouble = (
                f"checkpoint of step {message.step} cannot be used: {message.message}; training went on from that of"
                f" step {message.resumed}"
            )
        elif message.step > self.checkpoint_step:
            safe = (
                f"the newest safe one is of step {self.checkpoint_step}" if self.checkpoint_step else "none is safe yet"
            )
            self.checkpoint_trouble = f"checkpoint of step {message.step} failed: {message.message} ({safe})"

    def steps(self, life: Life, message: Steps, now: float) -> Iterator[StepReport]:
        """Learn from a worker's steps, and yield those that can be believed."""
        self.roster.counters["thinned-by-worker"] += message.dropped
        members = self.group.plan.local_batches if self.group.plan is not None else {}
        for report in message.steps:
            if self._runs(life, message.generation, report.plan_version, report.step):
                life.step, life.samples = max(life.step, report.step), max(life.samples, report.samples)
                self.progress.add(life.worker_id, message.generation, report, members, now)
                yield report

    def saved(self, planner: PlannerState) -> SavedState:
        """All of it that has to outlive the operator."""
        return SavedState(
            generation=self.group.generation,
            plan_version=self.group.version,
            members=self.group.saved_members(),
            plan=self.group.plan,
            checkpoint_step=self.checkpoint_step,
            final_checkpoint=self.final_checkpoint,
            step=self.progress.step,
            samples=self.progress.samples,
            total_samples=self.progress.total_samples,
            steps_lost=self.progress.steps_lost,
            planner=planner,
        )

    def _runs(self, life: Life, generation: int, version: int, step: int) -> bool:
        """Note that the worker runs this plan; False when nobody ever made such a plan."""
        if generation > self.group.generation or version > self.group.version:
            self.roster.counters["unknown-plan"] += 1
            return False
        life.generation = max(life.generation, generation)
        if version > life.plan_version:
            life.plan_version, life.plan_step = version, step
        return True
