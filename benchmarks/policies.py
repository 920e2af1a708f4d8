"""Which policy trains fastest? All of them on simulated jobs of published models, devices and noise, side by side.

A cell is a model, a mix of devices and a scenario: static; one worker twice as slow for half of the way; all workers
changing speed (OmniLearn's schedule of heterogeneity, and a drift); workers leaving and joining. In each cell every
policy trains the same job to the same progress, that of the published run at its base batch (useful samples), on the
same planner in virtual time: Sia's step times and communication, Pollux's noise scales. What a job is, and what is our
choice in it, is told by ``rex_operator/simulation``: it is shortened, so that the fixed costs of trials weigh more than
in a published run, for all alike (and is no longer than the published run was: 3,945 steps for bert).

Last comes one JSON line. Of the mean times over the seeds:
- ``rex_worst_vs_best``: REX over the best policy, in the cell where that is largest (1.0: REX is first everywhere);
- ``rex_vs_even_mixed``: even over REX, the mean over the static cells, and ``..._min``;
- ``rex_vs_best_rival_changing``: the best published rival over REX, the mean over the other cells, and ``_min``.
``raw-mwu`` and ``always-accept`` are REX itself with another verdict, so they are no rivals: they count in the first
figure, ``rex_worst_vs_published`` is without them, ``rex_vs_best_arm_changing`` is the better of them over REX.

The column "ideal" is a bound that no policy beats (``benchmarks/_ideal.py``): at each moment the best plan for the
devices as they truly are, changed for nothing. ``rex_vs_ideal`` is REX over it in the static cells (mean, ``_median``,
``_max``), ``rex_vs_ideal_changing`` in the others; ``best_rival_vs_ideal`` and ``..._changing`` are the best published
rival's.

With ``--resume FILE`` each job's outcome is appended to FILE, a JSON line, when it ends, and what stands there already
(same cell, policy, seed and steps) is not run again: a long comparison can be run in parts, and lives through a kill.
Whether the lines are of this version of the project is for you to know.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks._cells import MIXES, MODELS, SCENARIOS, Cell, Outcome, Task, load, simulate
from benchmarks._figures import by_cell, figures, mean_times, table
from benchmarks._ideal import ideals
from benchmarks._kept import BadLine, keep, kept
from rex_operator.planning.policies import POLICIES
from rex_operator.simulation.published import BadData
from rex_operator.simulation.workload import EPOCHS, STEPS

QUICK_MIXES = ("1 of each",)
QUICK_SCENARIOS = {"cifar10": tuple(SCENARIOS), "deepspeech2": ("changing",)}
QUICK_STEPS = 2000


def main() -> int:
    """Compare, print a table and one JSON line; 0 also where the data are missing, 1 if a policy failed."""
    options = _options()
    console = Console(width=220 if not sys.stdout.isatty() else None)
    result: dict[str, Any] = {}
    failed = False
    if not options.only_emulated:
        if not (options.data / "sia").is_dir() or not (options.data / "pollux").is_dir():
            console.print(
                f"Skipped: no published data in {options.data} (it takes sia/ and pollux/); name the folder with --data"
                " DIR or REX_DATA."
            )
            return 0
        outcomes = _simulate_all(options, console)
        failures = [outcome for outcome in outcomes if outcome.failure]
        for outcome in failures:
            console.print(f"FAILED {outcome.task.policy} in {outcome.task.cell}: {outcome.failure}", style="red")
        failed = bool(failures)
        cells = by_cell(outcomes)
        bounds = ideals(options.data, cells, options.steps)
        console.print(table(cells, bounds, options.policy))
        result |= figures(cells, bounds) | {"failures": len(failures), "steps": options.steps, "seeds": options.seeds}
    if options.emulated or options.only_emulated:
        from benchmarks import _emulated

        result["emulated"] = _emulated.compare(options.policy, options.seeds, console)
    print(json.dumps(result))
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policies", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"cifar10, and deepspeech2 changing; {QUICK_MIXES[0]}, {QUICK_STEPS} steps, one seed; two minutes",
    )
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("REX_DATA", beside)), metavar="DIR")
    parser.add_argument("--seeds", type=int, default=None, metavar="N", help="3, quick: 1")
    parser.add_argument(
        "--steps", type=int, default=None, metavar="N", help=f"of the initial batch to the target, at most: {STEPS}"
    )
    parser.add_argument("--policy", nargs="+", choices=tuple(POLICIES), default=list(POLICIES), metavar="NAME")
    parser.add_argument("--model", nargs="+", choices=MODELS, default=None, metavar="NAME")
    parser.add_argument("--mix", nargs="+", choices=tuple(MIXES), default=None, metavar="NAME")
    parser.add_argument("--scenario", nargs="+", choices=tuple(SCENARIOS), default=list(SCENARIOS), metavar="NAME")
    parser.add_argument("--resume", type=Path, default=None, metavar="FILE", help="keep outcomes there, and go on")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes")
    parser.add_argument("--emulated", action="store_true", help="also real training on emulated devices; minutes")
    parser.add_argument("--only-emulated", action="store_true", help="real training on emulated devices alone")
    options = parser.parse_args()
    options.seeds = options.seeds or (1 if options.quick else 3)
    options.steps = options.steps or (QUICK_STEPS if options.quick else STEPS)
    options.model = options.model or (tuple(QUICK_SCENARIOS) if options.quick else MODELS)
    options.mix = options.mix or (QUICK_MIXES if options.quick else tuple(MIXES))
    return options


def _simulate_all(options: argparse.Namespace, console: Console) -> list[Outcome]:
    cells = [
        Cell(model, mix, what)
        for model in options.model
        for mix in options.mix
        for what in options.scenario
        if not options.quick or what in QUICK_SCENARIOS.get(model, options.scenario)
    ]
    tasks = [
        Task(cell, policy, seed, options.steps, options.data)
        for cell in cells
        for policy in options.policy
        for seed in range(options.seeds)
    ]
    console.print(
        f"{len(cells)} cells, {len(options.policy)} policies, {options.seeds} seed(s): {len(tasks)} jobs of"
        f" {options.steps} steps of the initial batch ({EPOCHS} epochs); models {', '.join(options.model)};"
        f" mixes {', '.join(options.mix)}; {options.jobs} processes{'; a quick subset' if options.quick else ''}"
    )
    try:
        for model in options.model:
            for mix in options.mix:
                load(options.data, model, mix, options.steps)
    except BadData as error:
        console.print(f"The published data cannot be read: {error}", style="red")
        sys.exit(1)
    try:
        ended = kept(options.resume, tasks) if options.resume else {}
    except BadLine as error:
        console.print(str(error), style="red")
        sys.exit(1)
    if ended:
        console.print(f"{len(ended)} of them are in {options.resume}.")
    begun = time.monotonic()
    for outcome in _outcomes([task for task in tasks if task not in ended], options.jobs):
        ended[outcome.task] = outcome
        if options.resume:
            keep(options.resume, outcome)
        here = [ended[task] for task in tasks if task.cell == outcome.task.cell and task in ended]
        if len(here) == len(options.policy) * options.seeds:
            times = mean_times(by_cell(here)[outcome.task.cell])
            console.print(
                f"  {len(ended)}/{len(tasks)} after {time.monotonic() - begun:.0f} s: {outcome.task.cell}: "
                + ", ".join(f"{policy} {seconds:.0f} s" for policy, seconds in times.items()),
                style="dim",
                highlight=False,
            )
    return [ended[task] for task in tasks]


def _outcomes(tasks: Sequence[Task], processes: int) -> Iterator[Outcome]:
    """Run the jobs and yield each outcome as it ends."""
    if processes == 1:
        yield from map(simulate, tasks)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(simulate, task) for task in tasks]):
            yield done.result()


if __name__ == "__main__":
    sys.exit(main())
