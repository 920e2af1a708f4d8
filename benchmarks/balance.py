"""How fast are shares right again when a worker changes its speed, and do they stay still when none does?

A job of four unlike workers (two a100, v100, t4; steps of about half a second, 2 % noise) runs in virtual time under
each policy, with a fixed batch. Once its shares fit, something happens to one a100:

- ``step``: twice as slow from one step to the next, for good.
- ``recovery``: the same, and back after 150 steps.
- ``ramp``: slower by and by, twice as slow after 150 steps.
- ``switching``: twice as slow for 60 steps, as before for 60, and so on.
- ``bursts``: twice as slow for 4 steps out of every 30, too short to react to.
- ``still``: nothing. Noise is independent or AR(1) .3, .6, .8 of 5 %; with ``--lbb`` (a folder with its records as CSV)
  also the published compute times of real GPUs at fixed batches.

What is measured:

- ``reaction_steps``: steps from the change to the first one under other shares (``step``; median over the seeds).
- ``lost_steps``: what is lost from the change on against shares that are ideal at every step, in ideal steps.
- ``false_moves_per_1000_steps``: moves of shares though nothing changed (mean over the series, and the worst series).

``rex without the loop`` is the ablation: only changes that eight independent steps show. The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from unittest import mock

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from rex_operator.api.spec import RexJobSpec
from rex_operator.planning import PlanDraft, Planner, WorkerInfo
from rex_operator.planning.policies import POLICIES
from rex_operator.planning.share_loop import ShareLoop
from rex_operator.simulation.published.lbb import records
from rex_worker.protocol import StepReport

Noise = Callable[[np.random.Generator], Iterator[npt.NDArray[np.float64]]]
Slowness = Callable[[int], float]

KINDS = ("a100", "a100", "v100", "t4")
FIXED = np.array([0.06, 0.06, 0.10, 0.18])
EACH = np.array([0.0020, 0.0020, 0.0045, 0.0110])
"""Seconds per micro-batch of b samples: FIXED + EACH b."""
BATCH = 512
OVERHEAD_S = 0.04
EPOCH = 200
"""Steps per pass over the data."""
TICK_S = 0.5
"""Between two looks of the planner, as in the operator."""
TAKE_UP = 2
"""Steps until a plan is taken up by all."""
SETTLED, WATCHED = 250, 400
ABLATION = "rex without the loop"
CHANGES: dict[str, Slowness] = {
    "step": lambda t: 2.0,
    "recovery": lambda t: 2.0 if t < 150 else 1.0,
    "ramp": lambda t: 1 + min(t, 150) / 150,
    "switching": lambda t: 2.0 if t // 60 % 2 == 0 else 1.0,
    "bursts": lambda t: 2.0 if t % 30 < 4 else 1.0,
}


def ar1(rho: float, sd: float) -> Noise:
    """Return lognormal noise per worker with lag-1 correlation ``rho``."""

    def draw(rng: np.random.Generator) -> Iterator[npt.NDArray[np.float64]]:
        state = rng.normal(size=len(KINDS))
        while True:
            state = rho * state + np.sqrt(1 - rho * rho) * rng.normal(size=len(KINDS))
            yield np.exp(sd * state)

    return draw


def recorded(folder: Path) -> Iterator[tuple[str, Noise]]:
    """Return noise as real GPUs had it at a fixed batch: their compute times over their medians, worker by worker."""
    for record in records(folder):
        if record.tuned:
            continue
        columns = [i % record.compute_s.shape[1] for i in range(len(KINDS))]
        times = np.maximum(record.compute_s[:, columns], 1e-3)
        relative = times / np.median(times, axis=0)

        def draw(
            rng: np.random.Generator, series: npt.NDArray[np.float64] = relative
        ) -> Iterator[npt.NDArray[np.float64]]:
            start = int(rng.integers(len(series)))
            while True:
                yield series[start % len(series)]
                start += 1

        yield "lbb " + record.name.split("_even_")[0], draw


@dataclass
class Run:
    """What one run showed, from the change on."""

    moves: int
    reaction: int | None
    lost: float


def simulate(policy: str, slowness: Slowness, noise: Noise, seed: int, watched: int = WATCHED) -> Run:
    """Run a job; ``slowness`` of the first worker counts from the change on."""
    job = _Job(policy, noise, seed)
    for _ in range(SETTLED):
        job.step(1.0)
    before, job.lost, drafts = job.step_number, 0.0, job.drafts
    reaction: int | None = None
    for t in range(watched):
        job.step(slowness(t))
        if reaction is None and job.drafts > drafts:
            reaction = job.step_number - before + 1
    return Run(job.drafts - drafts, reaction, job.lost)


class _Job:
    """A job in virtual time."""

    def __init__(self, policy: str, noise: Noise, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._noise = noise(self._rng)
        self._planner = Planner(_spec(policy), np.random.default_rng(seed))
        self._now, self._poll, self._version, self._samples = 1000.0, 1000.0, 0, 0
        self._wish: tuple[int, PlanDraft] | None = None
        self.step_number, self.drafts, self.lost = 0, 0, 0.0
        workers = [WorkerInfo(f"w{i}", "life", kind) for i, kind in enumerate(KINDS)]
        self._take_up(self._planner.set_workers(workers, self._now))

    def _take_up(self, draft: PlanDraft) -> None:
        self._version += 1
        self._shares = np.array([draft.local_batches[f"w{i}"] for i in range(len(KINDS))])
        self._planner.plan_running(self._version, 1, draft, self.step_number + 1, self._now)

    def step(self, slowness: float) -> None:
        """Let the group do one step; the first worker is so much slower than usual."""
        slow = np.array([slowness, 1.0, 1.0, 1.0])
        true = (FIXED + EACH * self._shares) * slow
        ideal = (BATCH + (FIXED / EACH).sum()) / (1 / (EACH * slow)).sum()
        self.lost += (true.max() + OVERHEAD_S) / (ideal + OVERHEAD_S) - 1
        compute = true * next(self._noise)
        took = float(compute.max()) + OVERHEAD_S * float(self._rng.uniform(0.9, 1.1))
        self._now += took
        self.step_number += 1
        epoch, self._samples = self._samples // (EPOCH * BATCH), self._samples + BATCH
        for i, seconds in enumerate(compute.tolist()):
            report = StepReport(
                step=self.step_number,
                plan_version=self._version,
                samples=self._samples,
                epoch=epoch,
                local_batch=int(self._shares[i]),
                compute_s=seconds,
                wait_s=float(compute.max()) - seconds,
                step_s=took,
            )
            self._planner.observe(f"w{i}", "life", 1, report, self._now)
        self._decide()

    def _decide(self) -> None:
        if self._wish is not None:
            if self.step_number >= self._wish[0]:
                draft, self._wish = self._wish[1], None
                self._take_up(draft)
            return
        if self._now < self._poll:
            return
        self._poll = self._now + TICK_S
        answer = self._planner.poll(self._now)
        if isinstance(answer, PlanDraft):
            self.drafts += 1
            self._wish = self.step_number + TAKE_UP, answer


def _spec(policy: str) -> RexJobSpec:
    return RexJobSpec.model_validate(
        {
            "workers": {"min": 1, "max": 64},
            "pools": [{"name": "any", "maxWorkers": 64}],
            "template": {},
            "batch": {"initial": BATCH, "min": BATCH, "max": BATCH},
            "planner": {"policy": policy},
        }
    )


def measure(name: str, seeds: int, still: dict[str, Noise]) -> dict[str, object]:
    """Return all figures of one policy."""
    with ExitStack() as stack:
        if name == ABLATION:
            stack.enter_context(mock.patch.object(ShareLoop, "look", return_value=None))
            stack.enter_context(mock.patch.object(ShareLoop, "drifting", return_value=False))
        policy = "rex" if name == ABLATION else name
        quiet = ar1(0.3, 0.02)
        runs = {
            change: [simulate(policy, slowness, quiet, seed) for seed in range(seeds)]
            for change, slowness in CHANGES.items()
        }
        false = {
            series: mean(1000 / WATCHED * simulate(policy, lambda t: 1.0, noise, seed).moves for seed in range(seeds))
            for series, noise in still.items()
        }
    reactions = [run.reaction if run.reaction is not None else WATCHED for run in runs["step"]]
    return {
        "reaction_steps": median(reactions),
        "lost_steps": {change: round(mean(run.lost for run in found), 2) for change, found in runs.items()},
        "moves": {change: mean(run.moves for run in found) for change, found in runs.items()},
        "false_moves": {series: round(rate, 2) for series, rate in false.items()},
        "false_moves_per_1000_steps": round(mean(false.values()), 3),
        "false_moves_per_1000_steps_worst": round(max(false.values()), 3),
    }


def main() -> None:
    """Measure, print a table and one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.balance", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 instead of 20 seeds")
    parser.add_argument("--policies", nargs="*", help="only these")
    parser.add_argument("--lbb", type=Path, metavar="DIR", help="folder with the LBB records as *.csv.gz")
    options = parser.parse_args()
    balancers = [name for name, policy in POLICIES.items() if policy.about.changes == ("shares",)]
    names = options.policies or ["rex", ABLATION, "even", *balancers, "saddle"]
    still = {f"AR(1) {rho:g}": ar1(rho, 0.05) for rho in (0.0, 0.3, 0.6, 0.8)}
    if options.lbb is not None:
        still.update(recorded(options.lbb))
    figures = {name: measure(name, 2 if options.quick else 20, still) for name in names}
    console = Console(width=140)
    table = Table(
        title="steps to react; ideal steps lost of 400, by what happens; moves per 1000 steps when nothing does"
    )
    for column in ("policy", "reaction", *CHANGES, "still: mean", "worst"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for name, found in figures.items():
        lost = found["lost_steps"]
        assert isinstance(lost, dict)
        table.add_row(
            name,
            f"{found['reaction_steps']:g}",
            *(f"{lost[change]:.1f}" for change in CHANGES),
            f"{found['false_moves_per_1000_steps']}",
            f"{found['false_moves_per_1000_steps_worst']}",
        )
    console.print(table)
    rivals = [name for name in figures if not name.startswith("rex")]
    print(json.dumps({**figures.get("rex", {}), "policies": figures, "rivals": rivals}))


if __name__ == "__main__":
    main()
