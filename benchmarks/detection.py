"""How soon is a worker that changes its speed named, and how often is one named that did not?

Four workers whose compute times are independent, autocorrelated (AR(1) .3, .6, .8), or those of LBB's published
records (``--data``, REX_DATA, or ../shared/data beside the checkout). The planner's own detector looks every 4 steps.
False alarms are counted over windows of 400 steps in which nothing changes; in the records something may (LBB moves
shares in the tuned ones, load is injected in the disturbed ones), so these stand apart. The latency is the number of
steps from a change (x1.25, x1.5, x2 of one worker's time) to the look that names that worker.

The last line is one JSON object: ``false_alarms_per_1000_steps`` and ``latency_steps_median`` by series.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from scipy import signal

from benchmarks.validation import folder
from rex_operator.planning.straggler import find_change
from rex_operator.planning.windows import GroupStep
from rex_operator.simulation.published.lbb import records

Times = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator], Times]
"""Makes an array of ``LENGTH`` steps by workers, in seconds."""

LENGTH, CHANGE, EVERY = 400, 150, 4
SPREAD = 0.05
FACTORS = (1.25, 1.5, 2.0)
SEED = 20260101


def made(rho: float) -> Draw:
    """Return a maker of lognormal compute times of four workers with lag-1 correlation ``rho``."""

    def draw(rng: np.random.Generator) -> Times:
        noise = rng.normal(size=(LENGTH, 4)) * np.sqrt(1 - rho * rho)
        noise[0] = rng.normal(size=4)
        return np.asarray(np.exp(SPREAD * signal.lfilter([1.0], [1.0, -rho], noise, axis=0)))

    return draw


def recorded(where: Path) -> Iterator[tuple[str, Draw]]:
    """Return a maker per record: a random stretch of its compute times, epoch starts left out."""
    for record in records(where):
        times = record.compute_s[record.iteration != 0]
        if len(times) < LENGTH:
            continue

        def draw(rng: np.random.Generator, times: Times = times) -> Times:
            start = int(rng.integers(len(times) - LENGTH + 1))
            return times[start : start + LENGTH]

        yield "lbb " + record.name.split("_bs")[0], draw


def alarms(times: Times, until_named: int | None = None) -> tuple[int, int | None]:
    """Return how many changes are found, and the step of the look that first names worker ``until_named``.

    As in the planner, what lies before a change that was found is dropped.
    """
    none = np.zeros(1)
    steps = [GroupStep(i, i, float(row.max()), row, none, none, none, none, none, 0.0, None, False, True)
             for i, row in enumerate(times)]  # fmt: skip
    begin = found = 0
    for now in range(EVERY, len(steps) + 1, EVERY):
        change = find_change(steps[begin:now])
        if change is None:
            continue
        if change.worker == until_named and now > CHANGE:
            return found, now
        found += 1
        begin = max(begin, change.step)
    return found, None


def main() -> None:
    """Measure, print a table and one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detection", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="20 instead of 200 windows per series; under a minute")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of published data, with lbb/*.csv.gz")
    options = parser.parse_args()
    windows = 20 if options.quick else 200
    series: dict[str, Draw] = {"independent": made(0.0), **{f"AR(1) .{k}": made(k / 10) for k in (3, 6, 8)}}
    where = folder(options.data)
    if where is not None:
        series.update(recorded(where))
    table = Table(title=f"{windows} windows of {LENGTH} steps; steps until named (share of windows), median")
    for column in ("series", "false alarms / 1000 steps", *(f"x{factor}" for factor in FACTORS)):
        table.add_column(column, justify="right")
    false: dict[str, float] = {}
    latency: dict[str, dict[str, float | None]] = {}
    for name, draw in series.items():
        rng = np.random.default_rng(SEED)
        drawn = [draw(rng) for _ in range(windows)]
        false[name] = 1000 * sum(alarms(times)[0] for times in drawn) / (windows * LENGTH)
        cells, latency[name] = [], {}
        for factor in FACTORS:
            named = []
            for times in drawn:
                slowed = times.copy()
                slowed[CHANGE:, 0] *= factor
                at = alarms(slowed, until_named=0)[1]
                if at is not None:
                    named.append(at - CHANGE)
            latency[name][f"x{factor}"] = float(np.median(named)) if named else None
            cells.append(f"{np.median(named):.0f} ({len(named) / windows:.0%})" if named else "never")
        table.add_row(name, f"{false[name]:.2f}", *cells)
    Console(width=120).print(table)
    print(json.dumps({"false_alarms_per_1000_steps": false, "latency_steps_median": latency, "windows": windows}))


if __name__ == "__main__":
    main()
