"""Does the planner find the best batch of a published table? A table replayed as a job, to the planner's last word.

Published step times have cliffs: throughput falls and rises again with the batch, step time does too. A planner that
believes in smooth curves stops before a cliff, or falls into it. Here each placement of a table becomes a job of equal
workers, the real planner searches it until nothing seems worth a trial any more, and what it has found is held against
the best row that was measured.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rex_operator.api.spec import RexJobSpec
from rex_operator.planning import PlanDraft, Planner
from rex_operator.simulation.devices import Device
from rex_operator.simulation.job import Job
from rex_operator.simulation.published.table import Table

MOST_WORKERS = 4
"""Workers of a replayed job: the replicas of a table are alike, so that some of them stand for all."""
MOST_STEPS = 6000
_POLL_STEPS = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one table."""

    regret: float
    """The best measured row's rate over that of the plan found, less 1; negative where the plan is better than any."""
    best: int
    """Samples per worker of the best row."""
    found: PlanDraft
    steps: int
    """Until the planner said that nothing is worth a trial."""
    seconds: float
    """... and the job time of it."""
    trials: int
    converged: bool


class Replica:
    """One of a table's devices, in the table's placement; it knows its share of the communication as well.

    Between two rows the logarithm of the step time is linear in that of the batch, and so is the part of it that is
    communication; so every row is met exactly. Below the rows it is constant; the largest fills the memory.
    """

    def __init__(self, table: Table) -> None:
        """Take a table of at least one row."""
        self.kind = table.device
        self.most = table.rows[-1].local_batch
        self._sizes = [float(row.local_batch) for row in table.rows]
        self._steps = [row.step_s for row in table.rows]
        self._parts = [min(row.sync_s / row.step_s, 0.98) for row in table.rows]

    def seconds(self, samples: float) -> float:
        """Return the mean seconds of forward and backward over a micro-batch."""
        step, part = self._at(samples)
        return step * (1 - part)

    def sync_s(self, samples: float) -> float:
        """Return the mean seconds of communication that a step with such micro-batches shows."""
        step, part = self._at(samples)
        return step * part

    def _at(self, samples: float) -> tuple[float, float]:
        sizes, steps, parts = self._sizes, self._steps, self._parts
        if samples <= sizes[0]:
            return steps[0], parts[0]
        if samples >= sizes[-1]:
            return steps[-1], parts[-1]
        i = bisect_left(sizes, samples)
        place = math.log(samples / sizes[i - 1]) / math.log(sizes[i] / sizes[i - 1])
        step = steps[i - 1] * (steps[i] / steps[i - 1]) ** place
        return step, parts[i - 1] + place * (parts[i] - parts[i - 1])


class _Sync:
    """Communication as the table has it, for the largest micro-batch of the group."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def seconds(self, micro_batches: Iterable[tuple[Device, float]]) -> float:
        return self._replica.sync_s(max(size for _, size in micro_batches))


def replay(table: Table, seed: int, noise_scale: float | None = None, noise: float = 0.015) -> Outcome:
    """Search a table of at least two rows, from its smallest batch.

    Batches from that of the smallest row to that of the largest are allowed, in any number of passes. ``noise_scale``
    (samples): the objective is goodput; None: throughput. ``noise`` is the standard deviation of the log of a worker's
    seconds. There is no pause after a trial that failed, which would only make the replay longer.
    """
    workers = min(table.replicas, MOST_WORKERS)
    sizes = [row.local_batch for row in table.rows]
    spec = _spec(workers * sizes[0], workers * sizes[-1], "throughput" if noise_scale is None else "goodput")
    planner, replica = Planner(spec, np.random.default_rng(seed)), Replica(table)
    phi = math.inf if noise_scale is None else noise_scale
    job = Job.of(
        planner,
        [replica] * workers,
        seed,
        noise=noise,
        overhead_s=0.0,
        communication=_Sync(replica),
        noise_scale=lambda progress: min(phi, 1e6),
    )
    begun = job.now
    while job.step < MOST_STEPS and not planner.converged:
        for _ in range(_POLL_STEPS):
            job.one_step()
        job.poll()
    plan = job.drafts[-1]

    def rate(samples: int, seconds: float) -> float:
        return samples / seconds / (1 + samples / phi)

    rates = [rate(workers * row.local_batch, row.step_s) for row in table.rows]
    found = rate(plan.global_batch, job.step_s(plan))
    return Outcome(
        regret=max(rates) / found - 1,
        best=sizes[int(np.argmax(rates))],
        found=plan,
        steps=job.step,
        seconds=job.now - begun,
        trials=planner.view().trials,
        converged=planner.converged,
    )


def _spec(low: int, high: int, objective: str) -> RexJobSpec:
    return RexJobSpec.model_validate(
        {
            "workers": {"min": 1, "max": MOST_WORKERS},
            "pools": [{"name": "any", "maxWorkers": MOST_WORKERS}],
            "template": {},
            "batch": {"initial": low, "min": low, "max": high},
            "planner": {"policy": "rex", "objective": objective, "search": {"cooldownSeconds": 0}},
        }
    )
