"""A published model on a mix of published devices, as a job that can be simulated.

The initial batch is the smallest published one that gives each worker some samples, the largest allowed one is the
largest published; ceilings of the micro-batch are those of the tables and are declared, as in the published
experiments. The way to the target is shortened to a given number of steps of the initial batch, and has a given number
of epochs, so that every model gives a policy as many occasions as the others. A published run that was shorter than
that is not made longer: nobody would have trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rex_operator.api.spec import RexJobSpec
from rex_operator.planning import Planner
from rex_operator.simulation.communication import Published
from rex_operator.simulation.devices import Tabled
from rex_operator.simulation.job import Job
from rex_operator.simulation.learning import Course
from rex_operator.simulation.published.pollux import Trajectory
from rex_operator.simulation.published.reading import BadData
from rex_operator.simulation.published.table import Table

SAMPLES_EACH = 8
"""Samples per worker in the initial batch, at least."""
STEPS = 6000
"""Steps of the initial batch to the target, at most; published runs have 4 x 10^3 (bert) to 6 x 10^5 (imagenet)."""
EPOCHS = 20
"""Epochs of these; published runs have 2 to 100."""
NOISE, CORRELATION = 0.02, 0.3
"""Of step times; published ones vary by 0.2 to 4 %, with a lag-1 correlation of -.27 to .43 (LBB's records)."""
REGROUP_S = 2.0
"""What a change of the group costs: our choice, above what re-forming a group was measured to take (0.01 to 1.1 s)."""
OVERHEAD_S = 0.002
"""Optimiser step and the like: our choice."""


@dataclass(frozen=True)
class Workload:
    """A model, its published runs, and the devices it trains on."""

    model: str
    devices: tuple[Tabled, ...]
    communication: Published
    course: Course
    initial: int
    """Batch that the job begins with."""
    largest: int
    """Largest batch that may be tried."""

    def job(self, policy: str, seed: int) -> Job:
        """Return a new job under a policy; equal arguments give equal jobs."""
        planner = Planner(self._spec(policy), np.random.default_rng([seed, 1]))
        return Job.of(
            planner,
            self.devices,
            seed,
            noise_scale=self.course.noise_scale,
            noise=NOISE,
            correlation=CORRELATION,
            overhead_s=OVERHEAD_S,
            communication=self.communication,
            base_batch=self.course.base_batch,
            epoch=max(self.initial, self.initial * self.course.steps // EPOCHS),
            regroup_s=REGROUP_S,
            loss=lambda progress, batch: 0.3 + 2.0 / (1 + 10 * progress / self.course.target),
        )

    def _spec(self, policy: str) -> RexJobSpec:
        return RexJobSpec.model_validate(
            {
                "workers": {"min": 1, "max": 64},
                "pools": [{"name": "any", "maxWorkers": 64}],
                "template": {},
                "batch": {
                    "initial": self.initial,
                    "min": max(self.course.base_batch, len(self.devices)),
                    "max": self.largest,
                },
                "planner": {"policy": policy},
            }
        )


def workload(
    model: str, kinds: Sequence[str], tables: Sequence[Table], runs: Sequence[Trajectory], steps: int = STEPS
) -> Workload:
    """Return the workload of a model on devices of these kinds.

    ``steps`` of the initial batch reach the target, or as many as the published run had, if these are fewer. Raises
    ``BadData`` where something is not published.
    """
    own = [table for table in tables if table.model == model]
    alone = {t.device: t for t in own if t.replicas == 1 and t.source.startswith("sia/placements")}
    batches = {run.batch: run for run in runs if run.model == model}
    for kind in kinds:
        if kind not in alone:
            raise BadData(f"no published step times of {model} on one {kind}; there are {', '.join(sorted(alone))}")
    if not batches:
        raise BadData(f"no published training runs of {model}")
    initial = min((b for b in batches if b >= SAMPLES_EACH * len(kinds)), default=max(batches))
    devices = {kind: Tabled(alone[kind]) for kind in set(kinds)}
    return Workload(
        model=model,
        devices=tuple(devices[kind] for kind in kinds),
        communication=Published(own),
        course=Course.of(batches[min(batches)], initial, steps),
        initial=initial,
        largest=max(batches),
    )
