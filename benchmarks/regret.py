"""Does the planner find the best batch of what was measured? Its regret on the published step-time tables.

Each (file, nodes, replicas) group of the tables that Pollux and Sia published is replayed as a job of equal workers
(`rex_operator.simulation.replay`): the real planner with policy ``rex`` begins at the smallest row's batch, may use any
up to the largest row's, and searches until it says that nothing is worth a trial any more. Up to four workers stand for
all of a group's replicas, which are alike; a worker's step times scatter by 1.5 %. Between rows the step time is
interpolated log-log. Regret is the best row's throughput over that of the plan found, less 1.

A second replay of each group has the objective goodput, with the noise scale that Pollux published for the model's run
at its base batch, half-way through it; regret is in goodput then. Groups of one replica are left out of it: a single
worker has no noise scale, and so its batch stays.

The data are not part of the project: name the folder that holds ``pollux/`` and ``sia/`` with ``--data`` or REX_DATA.
The last line is one JSON object: ``regret_ok_share`` (share of the groups with a regret of at most 5 %; the goal is
0.9), the same for goodput, quantiles of the regret, and what the searches took.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table as Screen

from rex_operator.simulation.published import BadData, Table, pollux, sia
from rex_operator.simulation.replay import Outcome, replay

GOAL = 0.05
_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"
_QUICK = 16
"""The quick form takes each so manieth group."""


@dataclass(frozen=True)
class Replayed:
    """A group and what became of it."""

    table: Table
    throughput: Outcome
    goodput: Outcome | None


def main() -> int:
    """Run the benchmark; 0 when there were data."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.regret", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, default=Path(os.environ.get("REX_DATA", _BESIDE)), help="with pollux/, sia/"
    )
    parser.add_argument("--quick", action="store_true", help=f"the same as --every {_QUICK}")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each Nth group only; all take ten minutes")
    parser.add_argument("--placements", action="store_true", help="the placements files as well: three times as many")
    parser.add_argument("--worst", type=int, default=10, metavar="N", help="show the N groups with the largest regret")
    options = parser.parse_args()
    console = Console()
    try:
        tables = groups(options.data, placements=options.placements)
        scales = noise_scales(options.data)
    except BadData as error:
        console.print(f"nothing was measured: {error}", highlight=False)
        return 1
    chosen = tables[:: _QUICK if options.quick else options.every]
    console.print(f"{len(chosen)} groups of {len(tables)}, each searched for throughput and for goodput")
    begun, found = time.process_time(), []
    for number, table in enumerate(chosen):
        scale = scales.get(table.model)
        alone = table.replicas == 1  # no noise scale can be had of one worker
        goodput = replay(table, number, scale) if scale and not alone else None
        found.append(Replayed(table, replay(table, number), goodput))
    console.print(_screen(found))
    for each in sorted(found, key=lambda r: -r.throughput.regret)[: options.worst]:
        plan, table = each.throughput.found, each.table
        micro = plan.global_batch / len(plan.local_batches) / plan.accumulation
        console.print(
            f"  {table.source} {table.model} {table.placement}: regret {each.throughput.regret:.1%},"
            f" {micro:g} samples a pass, {plan.accumulation} passes; best row {each.throughput.best}",
            style="dim",
            highlight=False,
        )
    console.file.flush()
    print(json.dumps(figures(found, quick=options.quick, cpu_s=time.process_time() - begun)))
    return 0


def groups(data: Path, *, placements: bool = False) -> list[Table]:
    """Return the tables of three rows or more, sorted; Sia's T4 files repeat Pollux's. Raises ``BadData``."""
    tables = pollux.tables(data / "pollux") + [t for t in sia.tables(data / "sia") if t.device != "t4"]
    kept = [t for t in tables if len(t.rows) >= 3 and (placements or "scalability" in t.source)]
    return sorted(kept, key=lambda t: (t.model, t.source, t.nodes, t.replicas, t.placement))


def noise_scales(data: Path) -> dict[str, float]:
    """Return each model's noise scale half-way through Pollux's run at the base batch, in samples."""
    scales = {}
    for run in pollux.trajectories(data / "pollux"):
        told = run.noise_scale[np.isfinite(run.noise_scale) & (run.noise_scale > 0)]
        if run.batch == run.base_batch and told.size:
            scales[run.model] = float(told[told.size // 2])
    return scales


def figures(found: Sequence[Replayed], *, quick: bool, cpu_s: float) -> dict[str, object]:
    """Return the figures of the benchmark; see the module for their meaning."""
    return {
        "benchmark": "regret",
        "quick": quick,
        "groups": len(found),
        **_summary("", [each.throughput for each in found]),
        **_summary("goodput_", [each.goodput for each in found if each.goodput is not None]),
        "cpu_s": round(cpu_s, 1),
    }


def _summary(prefix: str, outcomes: Sequence[Outcome]) -> dict[str, object]:
    regrets = np.array([o.regret for o in outcomes])
    return {
        f"{prefix}regret_ok_share": round(float((regrets <= GOAL).mean()), 4),
        f"{prefix}regret_mean": round(float(np.maximum(regrets, 0).mean()), 4),
        f"{prefix}regret_p90": round(float(np.quantile(regrets, 0.9)), 4),
        f"{prefix}regret_max": round(float(regrets.max()), 4),
        f"{prefix}trials_mean": round(float(np.mean([o.trials for o in outcomes])), 2),
        f"{prefix}steps_mean": round(float(np.mean([o.steps for o in outcomes])), 1),
        f"{prefix}unfinished": sum(not o.converged for o in outcomes),
    }


def _screen(found: Sequence[Replayed]) -> Screen:
    screen = Screen(title=f"share of groups with a regret of at most {GOAL:.0%}")
    for name in ("source", "model"):
        screen.add_column(name)
    for name in ("groups", "throughput", "mean regret", "goodput", "mean regret", "trials"):
        screen.add_column(name, justify="right")
    rows: dict[tuple[str, str], list[Replayed]] = defaultdict(list)
    for each in found:
        rows[each.table.source, each.table.model].append(each)
    for (source, model), members in sorted(rows.items()):
        cells = []
        for outcomes in ([m.throughput for m in members], [m.goodput for m in members if m.goodput is not None]):
            regrets = np.array([o.regret for o in outcomes])
            cells += (
                [f"{(regrets <= GOAL).mean():.0%}", f"{np.maximum(regrets, 0).mean():.1%}"]
                if regrets.size
                else ["", ""]
            )
        trials = np.mean([m.throughput.trials for m in members])
        screen.add_row(source, model, str(len(members)), *cells, f"{trials:.1f}")
    return screen


if __name__ == "__main__":
    sys.exit(main())
