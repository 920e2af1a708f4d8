"""How well is the step time of several GPUs predicted? REX's curve and communication law against Pollux's model.

Sia's placements: six models on five kinds of GPU, alone and in groups of up to 64 on up to 16 nodes. Half of the rows
of each model and kind, drawn at random, are learned from; the error is |predicted / measured - 1| on those of the other
half that have more than one GPU. REX: a curve for computing (step less communication), and a law of the cost beside it
(`rex_operator.planning.communication`) for groups within a node and one for groups across nodes, as Pollux has it.
Pollux: its seven parameters (`rex_operator.planning.pollux_throughput`) on the same rows.

The data are not part of the project: name the folder with ``sia/`` by ``--data`` or REX_DATA. The last line is one JSON
object: ``communication_mape`` and ``pollux_mape`` (mean over models and kinds of the mean error, percent), the same as
``..._median`` (median of their medians), ``better`` (share of models and kinds in which REX's mean error is smaller),
and ``plain_mape``: the law without anything hidden, which is what the planner falls back to.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table as Screen

from rex_operator.planning.communication import KeptExchange, Law, fit
from rex_operator.planning.curves import Point, StepTimeCurve
from rex_operator.planning.pollux_throughput import Configuration
from rex_operator.planning.pollux_throughput import fit as fit_pollux
from rex_operator.simulation.published import BadData, sia

Array = npt.NDArray[np.float64]
Predictor = Callable[[Array], Array]
_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"
_NOISE = 0.05
"""Standard deviation of the logarithm of a measured time, for REX: these are single measurements."""
_QUICK = 5


def main() -> int:
    """Run the benchmark; 0 when there were data."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groups", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("REX_DATA", _BESIDE)), help="with sia/")
    parser.add_argument("--quick", action="store_true", help=f"each {_QUICK}th model and kind only")
    options = parser.parse_args()
    console = Console()
    try:
        groups = measured(options.data)
    except BadData as error:
        console.print(f"{error}")
        return 1
    names = sorted(groups)[:: _QUICK if options.quick else 1]
    rng = np.random.default_rng(0)
    found: dict[str, list[Array]] = {"communication": [], "plain": [], "pollux": []}
    screen = Screen("model", "GPU", "rows", "REX", "REX, plain", "Pollux", title="mean error in percent")
    for name in names:
        rows = rng.permutation(groups[name])
        known, asked = rows[::2], rows[1::2]
        asked = asked[asked[:, 1] > 1]
        for model, predict in predictors(known).items():
            found[model].append(100 * np.abs(predict(asked) / asked[:, 3] - 1))
        screen.add_row(*name, str(len(known)), *(f"{errors[-1].mean():.1f}" for errors in found.values()))
    console.print(screen)
    console.file.flush()
    print(json.dumps({"benchmark": "groups", "quick": options.quick, **figures(found)}))
    return 0


def figures(found: dict[str, list[Array]]) -> dict[str, float]:
    """Return the figures; see the module for their meaning."""
    out = {f"{name}_mape": round(float(np.mean([e.mean() for e in errors])), 2) for name, errors in found.items()}
    out |= {f"{name}_median": round(float(np.median([np.median(e) for e in es])), 2) for name, es in found.items()}
    pairs = zip(found["communication"], found["pollux"], strict=True)
    return {**out, "better": round(float(np.mean([ours.mean() < theirs.mean() for ours, theirs in pairs])), 2)}


def measured(folder: Path) -> dict[tuple[str, str], Array]:
    """Return rows of (nodes, replicas, local batch, step seconds, sync seconds) by model and kind."""
    rows: dict[tuple[str, str], list[tuple[float, ...]]] = defaultdict(list)
    for table in sia.tables(folder / "sia"):
        if table.source.startswith("sia/placements"):
            for row in table.rows:
                place = (table.nodes, table.replicas)
                rows[table.model, table.device].append((*place, row.local_batch, row.step_s, row.sync_s))
    return {name: np.array(found) for name, found in rows.items()}


def predictors(known: Array) -> dict[str, Predictor]:
    """Return all models, fitted to rows."""
    curve = StepTimeCurve.fit([Point(b, step - sync, _NOISE**2) for _, _, b, step, sync in known])
    across = known[:, 0] > 1
    groups = {far: _seen(curve, known[(across == far) & (known[:, 1] > 1)]) for far in (False, True)}
    laws = {far: fit(seen) for far, seen in groups.items()}
    # Passes that are told to be alike say nothing of hiding.
    plain = {far: fit([s.model_copy(update={"compute_s": 1.0}) for s in seen]) for far, seen in groups.items()}
    theirs = fit_pollux([Configuration(int(n), int(k), b, step - sync, step) for n, k, b, step, sync in known])

    def ours(chosen: dict[bool, Law]) -> Predictor:
        return lambda rows: np.array(
            [float(chosen[n > 1].at(int(k)).step_seconds(curve.time(b), 1)) for n, k, b, *_ in rows]
        )

    def pollux(rows: Array) -> Array:
        one = np.ones(1)
        return np.array([theirs.iteration_s(int(n), int(k), b * one, one)[0] for n, k, b, *_ in rows])

    return {"communication": ours(laws), "plain": ours(plain), "pollux": pollux}


def _seen(curve: StepTimeCurve, rows: Array) -> list[KeptExchange]:
    return [
        KeptExchange(
            workers=int(k),
            global_batch=int(b * k),
            accumulation=1,
            compute_s=float(curve.time(b)),
            overhead_s=max(0.0, step - float(curve.time(b))),
            variance=(_NOISE * step) ** 2,
        )
        for _, k, b, step, _ in rows
    ]


if __name__ == "__main__":
    sys.exit(main())
