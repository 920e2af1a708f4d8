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
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks._cells import MIXES, MODELS, SCENARIOS, Cell, Outcome, Task, load, simulate
from rex_operator.planning.policies import POLICIES
from rex_operator.simulation.published import BadData
from rex_operator.simulation.workload import EPOCHS, STEPS

QUICK_MIXES = ("1 of each",)
QUICK_SCENARIOS = {"cifar10": tuple(SCENARIOS), "deepspeech2": ("changing",)}
QUICK_STEPS = 2000

ARMS = ("raw-mwu", "always-accept")
"""REX with other verdicts."""

Times = Mapping[Cell, Mapping[str, Sequence[Outcome]]]


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
        console.print(_table(cells, options.policy))
        result |= figures(cells) | {"failures": len(failures), "steps": options.steps, "seeds": options.seeds}
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
    begun, outcomes, each = time.monotonic(), [], len(options.policy) * options.seeds
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for outcome in pool.map(simulate, tasks, chunksize=1):
            outcomes.append(outcome)
            if len(outcomes) % each == 0:
                times = mean_times(by_cell(outcomes[-each:])[outcome.task.cell])
                console.print(
                    f"  {len(outcomes)}/{len(tasks)} after {time.monotonic() - begun:.0f} s: {outcome.task.cell}: "
                    + ", ".join(f"{policy} {seconds:.0f} s" for policy, seconds in times.items()),
                    style="dim",
                    highlight=False,
                )
    return outcomes


def by_cell(outcomes: Sequence[Outcome]) -> Times:
    """Return the outcomes by cell and policy."""
    cells: dict[Cell, dict[str, list[Outcome]]] = {}
    for outcome in outcomes:
        cells.setdefault(outcome.task.cell, {}).setdefault(outcome.task.policy, []).append(outcome)
    return cells


def mean_times(policies: Mapping[str, Sequence[Outcome]]) -> dict[str, float]:
    """Return the mean seconds to the target by policy, best first; without those that failed."""
    times = {
        policy: statistics.fmean(o.result.seconds for o in group if o.result is not None)
        for policy, group in policies.items()
        if all(o.result is not None for o in group)
    }
    return dict(sorted(times.items(), key=lambda item: item[1]))


def figures(cells: Times) -> dict[str, Any]:
    """Return the figures of the comparison; those that need a policy that was left out are None."""
    worst, published, mixed, rivals, arms = [], [], [], [], []
    for cell, policies in cells.items():
        times = mean_times(policies)
        others = [seconds for policy, seconds in times.items() if policy not in ("rex", *ARMS)]
        own = [seconds for policy, seconds in times.items() if policy in ARMS]
        if "rex" not in times or not others:
            continue
        worst.append(times["rex"] / min(times.values()))
        published.append(times["rex"] / min(*others, times["rex"]))
        if cell.scenario == "static" and "even" in times:
            mixed.append(times["even"] / times["rex"])
        if cell.scenario != "static":
            rivals.append(min(others) / times["rex"])
            arms += [min(own) / times["rex"]] if own else []
    return {
        "rex_worst_vs_best": _rounded(max(worst, default=None)),
        "rex_first_or_within_1pct": _rounded(statistics.fmean(w <= 1.01 for w in worst) if worst else None),
        "rex_worst_vs_published": _rounded(max(published, default=None)),
        "rex_vs_even_mixed": _rounded(statistics.fmean(mixed) if mixed else None),
        "rex_vs_even_mixed_min": _rounded(min(mixed, default=None)),
        "rex_vs_best_rival_changing": _rounded(statistics.fmean(rivals) if rivals else None),
        "rex_vs_best_rival_changing_min": _rounded(min(rivals, default=None)),
        "rex_vs_best_arm_changing": _rounded(statistics.fmean(arms) if arms else None),
        "cells": list(_rows(cells)),
    }


def _rows(cells: Times) -> Iterator[dict[str, Any]]:
    for cell, policies in cells.items():
        for policy, seconds in mean_times(policies).items():
            results = [o.result for o in policies[policy] if o.result is not None]
            yield {
                "model": cell.model,
                "mix": cell.mix,
                "scenario": cell.scenario,
                "policy": policy,
                "seconds": round(seconds, 1),
                "sd": round(statistics.stdev(r.seconds for r in results), 1) if len(results) > 1 else None,
                "missed": sum(not r.reached for r in results),
                "samples_per_s": round(statistics.fmean(r.samples_per_s for r in results), 1),
                "steps": round(statistics.fmean(r.steps for r in results)),
                "final_batch": round(statistics.median(r.final_batch for r in results)),
                "decisions": round(statistics.fmean(sum(r.decisions.values()) for r in results), 1),
                "trials": round(statistics.fmean(r.decisions.get("trial-started", 0) for r in results), 1),
                "evidence_bytes": round(statistics.fmean(r.evidence_bytes for r in results)),
            }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _table(cells: Times, names: Sequence[str]) -> Table:
    table = Table(title="time to target over the best policy's (± sd over seeds); !: not reached")
    for column in ("model", "mix", "scenario", "best, s"):
        table.add_column(column, justify="right" if column == "best, s" else "left", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    for cell, policies in cells.items():
        times = mean_times(policies)
        best = min(times.values(), default=1.0)
        shown = [_shown(policies.get(name, ()), times.get(name), best) for name in names]
        table.add_row(cell.model, cell.mix, cell.scenario, f"{best:.0f}", *shown)
    return table


def _shown(group: Sequence[Outcome], seconds: float | None, best: float) -> str:
    if seconds is None:
        return "failed"
    results = [o.result for o in group if o.result is not None]
    spread = f"±{statistics.stdev(r.seconds for r in results) / best:.2f}" if len(results) > 1 else ""
    text = f"{seconds / best:.2f}{spread}{'' if all(r.reached for r in results) else '!'}"
    return f"[bold]{text}[/bold]" if seconds <= 1.01 * best else text


if __name__ == "__main__":
    sys.exit(main())
