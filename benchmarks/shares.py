"""How long does it take to share a batch among a thousand workers? `split` on unlike curves, with ceilings.

Three teams: ``alike`` has four kinds of device, ``unlike`` a curve of its own for each worker, ``equal`` one kind, so
that all are equally slow to the last digit. Each worker is up to 30 % slower than its kind, and every fourth has a
ceiling that its best share would pass. The time is that of one core (CPU time), the median of some splits of different
batches.

The last line is one JSON object: ``split_1000_ms`` (the worst of the three teams; the goal is 50), each team's figure,
``idle_1000_ms`` with idle workers allowed, and ``split_64_ms``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from threadpoolctl import threadpool_limits

from rex_operator.planning.curves import Point, StepTimeCurve
from rex_operator.planning.split import WorkerModel, split

GOAL_MS = 50.0
_SIZES = (8, 16, 32, 64, 128, 256)
_PER_WORKER = 48
_one_core: Any = threadpool_limits


def main() -> int:
    """Run the benchmark; 0 when the goal is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shares", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer splits")
    quick = parser.parse_args().quick
    repeats, console = (3 if quick else 15), Console()
    with _one_core(1):
        kinds = {name: team(1000) for name, team in (("alike", alike), ("unlike", unlike), ("equal", equal))}
        figures = {f"{name}_1000_ms": took(models, repeats) for name, models in kinds.items()}
        figures["idle_1000_ms"] = took(kinds["unlike"], repeats, idle=True)
        figures["split_64_ms"] = took(unlike(64), repeats)
    worst = max(figures[f"{name}_1000_ms"] for name in kinds)
    for name, value in figures.items():
        console.print(f"{name:18} {value:7.2f}", highlight=False)
    console.file.flush()
    print(json.dumps({"benchmark": "shares", "quick": quick, "split_1000_ms": worst, **figures}))
    return 0 if worst <= GOAL_MS else 1


def took(models: Sequence[WorkerModel], repeats: int, idle: bool = False) -> float:
    """Return the median milliseconds of a split; the first one, which also reads the curves' tables, counts too."""
    times = []
    for i in range(repeats):
        batch, accumulation = _PER_WORKER * len(models) + 37 * i, 1 + i % 3
        began = time.process_time()
        shares = split(models, batch, accumulation, idle=idle)
        times.append(1e3 * (time.process_time() - began))
        if sum(shares.values()) != batch:
            raise AssertionError(f"shares of {batch} sum to {sum(shares.values())}")
    return round(statistics.median(times), 2)


def alike(count: int) -> list[WorkerModel]:
    """Return workers of four kinds."""
    rng = np.random.default_rng(0)
    kinds = [_curve(rng) for _ in range(4)]
    return _team(count, lambda i: kinds[i % 4], rng)


def unlike(count: int) -> list[WorkerModel]:
    """Return workers with a curve each."""
    rng = np.random.default_rng(1)
    return _team(count, lambda i: _curve(rng), rng)


def equal(count: int) -> list[WorkerModel]:
    """Return workers that are all the same."""
    curve = _curve(np.random.default_rng(2))
    return [WorkerModel(f"w{i}", curve) for i in range(count)]


def _curve(rng: np.random.Generator) -> StepTimeCurve:
    fixed, each = 0.02 * rng.random(), 0.0002 * 10 ** rng.random()
    return StepTimeCurve.fit([Point(x, fixed + each * x * float(np.exp(0.03 * rng.normal()))) for x in _SIZES])


def _team(count: int, curve: Callable[[int], StepTimeCurve], rng: np.random.Generator) -> list[WorkerModel]:
    return [
        WorkerModel(f"w{i}", curve(i), 1 + 0.3 * float(rng.random()), _PER_WORKER // 2 if i % 4 == 0 else None)
        for i in range(count)
    ]


if __name__ == "__main__":
    sys.exit(main())
