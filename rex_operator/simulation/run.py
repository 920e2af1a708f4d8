"""From a job and a scenario to figures: how long until the job is as far as the published run was?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rex_operator.simulation.job import Job
from rex_operator.simulation.scenario import Director, Scenario


@dataclass(frozen=True)
class Result:
    """One simulated job."""

    seconds: float
    """Job time to the target."""
    reached: bool
    """Whether it got there before it was given up."""
    steps: int
    samples: int
    progress: float
    """Useful samples; passes the target by less than one step."""
    final_batch: int
    decisions: dict[str, int]
    """By kind."""
    evidence_bytes: int
    """Of all records of what was decided and why, as JSON."""
    lost_steps: int
    """Steps that ran out of memory."""

    @property
    def samples_per_s(self) -> float:
        """Mean throughput."""
        return self.samples / self.seconds


def run(job: Job, scenario: Scenario, target: float, give_up_s: float) -> Result:
    """Train until ``target`` useful samples are done, or for ``give_up_s`` seconds."""
    director, begun = Director(scenario, job), job.now
    decisions: Counter[str] = Counter()
    evidence, seen = 0, None
    while job.progress < target and job.now - begun < give_up_s:
        director.direct(job, job.progress / target)
        job.advance()
        records = job.planner.decisions
        if records and records[-1] is not seen:
            fresh = list(records)
            if seen is not None:
                fresh = fresh[next((i + 1 for i, r in enumerate(fresh) if r is seen), 0) :]
            seen = fresh[-1]
            decisions.update(record.kind for record in fresh)
            evidence += sum(len(record.model_dump_json()) for record in fresh)
    return Result(
        seconds=job.now - begun,
        reached=job.progress >= target,
        steps=job.step,
        samples=job.samples,
        progress=job.progress,
        final_batch=job.drafts[-1].global_batch,
        decisions=dict(decisions),
        evidence_bytes=evidence,
        lost_steps=job.lost_steps,
    )
