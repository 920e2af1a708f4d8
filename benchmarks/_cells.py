"""The cells of the comparison of policies: a model, a mix of devices, what happens; and one job in one of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rex_operator.simulation import scenario
from rex_operator.simulation.devices import Device
from rex_operator.simulation.published import pollux, sia
from rex_operator.simulation.published.pollux import Trajectory
from rex_operator.simulation.published.table import Table
from rex_operator.simulation.run import Result, run
from rex_operator.simulation.scenario import Scenario
from rex_operator.simulation.workload import Workload, workload

MODELS = ("cifar10", "bert", "imagenet", "yolov3", "deepspeech2", "ncf")
MIXES = {
    "2 T4 + 2 2080Ti": ("t4", "t4", "2080ti", "2080ti"),
    "1 of each": ("t4", "2080ti", "v100", "a100"),
    "4 T4 + 2 A100": ("t4",) * 4 + ("a100",) * 2,
    "2 2080Ti + 2 V100 + 2 A100": ("2080ti",) * 2 + ("v100",) * 2 + ("a100",) * 2,
}
SCENARIOS: dict[str, Callable[[Sequence[Device]], Scenario]] = {
    "static": lambda devices: scenario.static(),
    "straggler": scenario.straggler,
    "changing": scenario.changing,
    "joins/leaves": scenario.joins_and_leaves,
}
GIVE_UP = 10.0
"""A job that takes so many times what the initial batch, shared evenly, would take in peace is ended."""


@dataclass(frozen=True)
class Cell:
    """One comparison; all policies meet in it."""

    model: str
    mix: str
    scenario: str

    def __str__(self) -> str:
        return f"{self.model}, {self.mix}, {self.scenario}"


@dataclass(frozen=True)
class Task:
    """One simulated job."""

    cell: Cell
    policy: str
    seed: int
    steps: int
    folder: Path


@dataclass(frozen=True)
class Outcome:
    """What became of it."""

    task: Task
    result: Result | None
    failure: str | None = None
    """What went wrong: a plan that breaks a promise, or an error in the policy."""


@functools.cache
def _published(folder: Path) -> tuple[tuple[Table, ...], tuple[Trajectory, ...]]:
    return tuple(sia.tables(folder / "sia")), tuple(pollux.trajectories(folder / "pollux"))


@functools.cache
def load(folder: Path, model: str, mix: str, steps: int) -> Workload:
    """Return a cell's workload. Raises ``BadData``."""
    tables, runs = _published(folder)
    return workload(model, MIXES[mix], tables, runs, steps)


def simulate(task: Task) -> Outcome:
    """Run one job to its target; never raises for what a policy does."""
    work = load(task.folder, task.cell.model, task.cell.mix, task.steps)
    try:
        job = work.job(task.policy, task.seed)
        happens = SCENARIOS[task.cell.scenario](work.devices)
        return Outcome(task, run(job, happens, work.course.target, GIVE_UP * work.course.steps * even_step_s(work)))
    except Exception as error:
        return Outcome(task, None, f"{type(error).__name__}: {error}")


@functools.cache
def even_step_s(work: Workload) -> float:
    """Return the mean seconds of a step of the initial batch, shared evenly."""
    job = work.job("even", 0)
    if job.plan is None:
        raise RuntimeError("a job with workers has a plan")
    return job.step_s(job.plan)
