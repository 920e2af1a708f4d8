"""Jobs in virtual time that put a policy to the test: what a check needs, small and the same on every run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from rex_operator.api.spec import RexJobSpec
from rex_operator.planning import Planner, PlannerState
from rex_operator.planning.policies import Policy
from rex_operator.simulation.devices import Bent, Device
from rex_operator.simulation.job import Job

Make: TypeAlias = Callable[[], Policy]
"""Makes a new policy object: its class, as a rule."""

FAST = Bent("fast", 0.006, 0.00020, 24)
MIDDLE = Bent("middle", 0.010, 0.00045, 12)
SLOW = Bent("slow", 0.018, 0.00110, 4)
MIX: tuple[Device, ...] = (FAST, FAST, MIDDLE, SLOW)
ALIKE: tuple[Device, ...] = (MIDDLE,) * 4
PASS_STEPS = 40
"""Steps of a pass over the data at the initial batch: some policies act only when one ends."""


def demand(kept: bool, otherwise: str) -> None:
    """Raise ``AssertionError`` with a sentence unless a demand is kept, also where Python leaves out ``assert``."""
    if not kept:
        raise AssertionError(otherwise)


def spec(
    *, initial: int = 64, low: int = 16, high: int = 512, min_share: int = 1, objective: str = "goodput"
) -> RexJobSpec:
    """Return a spec with trials as short as they may be."""
    return RexJobSpec.model_validate(
        {
            "workers": {"min": 1, "max": 64},
            "pools": [{"name": "any", "maxWorkers": 64}],
            "template": {},
            "batch": {"initial": initial, "min": low, "max": high, "minShare": min_share},
            "planner": {
                "objective": objective,
                "validation": {"minSteps": 20, "warmupSteps": 5},
                "search": {"maxTrials": 40, "cooldownSeconds": 2},
            },
        }
    )


def job(
    make: Make,
    devices: Sequence[Device] = MIX,
    wanted: RexJobSpec | None = None,
    *,
    seed: int = 0,
    saved: PlannerState | None = None,
    planner: type[Planner] = Planner,
    **more: Any,
) -> Job:
    """Return a job that is planned by a new policy; ``more`` are fields of the simulated `Job`."""
    wanted = wanted or spec()
    brain = planner(wanted, np.random.default_rng(seed), saved, make())
    return Job.of(brain, devices, seed, **{"epoch": PASS_STEPS * wanted.batch.initial, **more})


def train(running: Job, steps: int) -> Job:
    """Let a job do so many steps, and return it."""
    for _ in range(steps):
        running.advance()
    return running
