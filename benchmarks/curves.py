"""How well do step-time curves predict batch sizes that were not run? REX's against the rivals', on published tables.

The tables are those of one GPU alone: Sia (six models on T4, 2080Ti, RTX 6000, V100, A100) and Gavel (five models on
K80, P100, V100). Four questions to each curve, the error being |predicted / measured - 1|:

- ``loo``: leave out one size between the smallest and the largest, predict it (curves of five sizes or more);
- ``4``, ``5``: fit on so many sizes, evenly spread over the ranks, smallest and largest among them; predict the others
  (curves of seven sizes or more);
- ``beyond``: fit on the sizes up to half of the largest, predict the largest (curves of seven sizes or more). This is
  at the end of REX's trusted range or beyond it.

Every model gets the same points. All of Sia's tables were looked at while the constants of REX's curve were set, so
none of them is unseen; ``..._half`` is the error on bert, imagenet and ncf alone. The smoothing spline needs five
points; ``spline_mape_common`` is REX's on the leave-one-out targets that it can answer too.

The data are not part of the project: name the folder with ``sia/`` and ``gavel/`` by ``--data`` or REX_DATA. The last
line is one JSON object. ``NAME_mape``, ``NAME_median``, ``NAME_p90`` are leave-one-out errors on Sia in percent,
``gavel_NAME_mape`` those on Gavel, ``all_NAME_mape`` on both, ``NAME_mape_4``, ``_5`` and ``_beyond`` answer the other
questions; NAME is ``spline`` (REX), ``linear``, ``cubic`` (LBB's), ``natural_cubic``, ``pollux``, ``gp``,
``linear_gp``, ``smoothing`` or ``pchip``. ``family_mape_1`` and ``_2`` are the errors from one size in the middle, and
from two in the lower half, up to four times as far, when the curve may borrow the shapes of the same model's other
devices (``spline_mape_1``, ``_2``: when not); ``cliffs`` lists where REX says that time jumps; ``fit_ms`` is what one
fit takes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table as Screen
from threadpoolctl import threadpool_limits

from benchmarks._curve_rivals import MODELS, Array
from rex_operator.planning.curves import Point, StepTimeCurve
from rex_operator.simulation.published import BadData, Table, gavel, sia

_HALF = ("bert", "imagenet", "ncf")
Which = npt.NDArray[np.bool_]
_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"
_MODELS_SHOWN = {"loo": "leave one out", "4": "4 anchors", "5": "5 anchors", "beyond": "twice as far or more"}
_QUICK = 4
"""The quick form takes each so manieth curve."""


@dataclass(frozen=True)
class Measured:
    """One model on one device."""

    source: str
    model: str
    device: str
    sizes: Array
    seconds: Array


@dataclass(frozen=True)
class Question:
    """Fit on some sizes, predict others."""

    kind: str
    curve: Measured
    known: Which
    """Of the sizes, True where it may be used."""
    asked: Which

    def errors(self, name: str) -> Array | None:
        """Return a model's errors in percent; None where it needs more points."""
        sizes, seconds = self.curve.sizes, self.curve.seconds
        if name == "smoothing" and self.known.sum() < 5:
            return None
        found = MODELS[name](sizes[self.known], seconds[self.known])
        return np.asarray(100 * np.abs(found(sizes[self.asked]) / seconds[self.asked] - 1))


def main() -> int:
    """Run the benchmark; 0 when there were data."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.curves", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, default=Path(os.environ.get("REX_DATA", _BESIDE)), help="with sia/, gavel/"
    )
    parser.add_argument("--quick", action="store_true", help=f"each {_QUICK}th curve only")
    options = parser.parse_args()
    console = Console(width=120)
    try:
        curves = one_gpu(options.data)
    except BadData as error:
        console.print(f"{error}")
        return 1
    if options.quick:
        curves = curves[::_QUICK]
    one_core: Any = threadpool_limits
    with one_core(1):  # matrices this small lose more by waking other cores than they win
        answers = answer([q for curve in curves for q in questions(curve)])
    for kind, words in _MODELS_SHOWN.items():
        console.print(_screen(words, answers, kind))
    console.file.flush()
    print(json.dumps({"benchmark": "curves", "quick": options.quick, **figures(answers), **of_ours(curves)}))
    return 0


def one_gpu(folder: Path) -> list[Measured]:
    """Return the curves of one GPU alone. Raises ``BadData``."""
    tables = [t for t in sia.tables(folder / "sia") if t.source.startswith("sia/placements")]
    tables += [t for t in gavel.tables(folder / "gavel") if t.placement == "consolidated"]
    return [_measured(t) for t in tables if t.replicas == 1]


def _measured(table: Table) -> Measured:
    sizes = np.array([row.local_batch for row in table.rows], dtype=np.float64)
    seconds = np.array([row.step_s for row in table.rows])
    return Measured(table.source.split("/")[0], table.model, table.device, sizes, seconds)


def questions(curve: Measured) -> Iterator[Question]:
    """Yield all questions to one curve."""
    count = curve.sizes.size
    ranks = np.arange(count)
    for i in range(1, count - 1) if count >= 5 else ():
        yield Question("loo", curve, ranks != i, ranks == i)
    if count < 7:
        return
    for anchors in (4, 5):
        known = np.isin(ranks, np.rint(np.linspace(0, count - 1, anchors)))
        yield Question(str(anchors), curve, known, ~known)
    yield Question("beyond", curve, curve.sizes <= curve.sizes[-1] / 2, ranks == count - 1)


@dataclass(frozen=True)
class Answer:
    """All models' errors on one question, by name."""

    question: Question
    errors: dict[str, Array]


def answer(asked: Sequence[Question]) -> list[Answer]:
    """Let every model answer every question."""
    answers = []
    for question in asked:
        found = {name: question.errors(name) for name in MODELS}
        answers.append(Answer(question, {name: e for name, e in found.items() if e is not None}))
    return answers


def errors(answers: Sequence[Answer], name: str, kind: str, source: str = "sia") -> Array:
    """Return a model's errors of one kind, in percent."""
    chosen = [a.errors[name] for a in answers if (a.question.kind, a.question.curve.source) == (kind, source)
              and name in a.errors]  # fmt: skip
    return np.concatenate(chosen) if chosen else np.array([])


def figures(answers: Sequence[Answer]) -> dict[str, float]:
    """Return the figures of all models; see the module for their meaning."""
    out: dict[str, float] = {}

    def put(key: str, found: Array) -> None:
        if found.size:
            out[key] = round(float(found.mean()), 3)

    for name in MODELS:
        left_out = errors(answers, name, "loo")
        put(f"{name}_mape", left_out)
        if left_out.size:
            out[f"{name}_median"] = round(float(np.median(left_out)), 3)
            out[f"{name}_p90"] = round(float(np.quantile(left_out, 0.9)), 3)
        for kind in ("4", "5", "beyond"):
            put(f"{name}_mape_{kind}", errors(answers, name, kind))
        other = errors(answers, name, "loo", "gavel")
        put(f"gavel_{name}_mape", other)
        if other.size:
            put(f"all_{name}_mape", np.concatenate([left_out, other]))
        half = [a for a in answers if a.question.curve.model in _HALF]
        for kind in ("loo", "4", "5", "beyond"):
            put(f"{name}_mape_{kind}_half", errors(half, name, kind))
    put("spline_mape_common", errors([a for a in answers if "smoothing" in a.errors], "spline", "loo"))
    return out


def of_ours(curves: Sequence[Measured]) -> dict[str, object]:
    """Return what only REX's curve has: shapes borrowed from other devices, cliffs; and what a fit takes."""
    by_model: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    for curve in curves:
        by_model[curve.source, curve.model].append(curve)
    cliffs: list[str] = []
    began = time.perf_counter()
    fitted = {(c.source, c.model, c.device): _fit(c.sizes, c.seconds) for c in curves}
    took = (time.perf_counter() - began) / len(curves)
    for curve in curves:
        own = fitted[curve.source, curve.model, curve.device]
        cliffs += [f"{curve.model} {curve.device} {c.low:.0f}..{c.high:.0f} x{c.jump:.2f}" for c in own.cliffs]
    out: dict[str, object] = {}
    for name, places in (("1", (0.5,)), ("2", (0.2, 0.5))):
        alone: list[Array] = []
        helped: list[Array] = []
        for curve in curves:
            others = [
                fitted[o.source, o.model, o.device] for o in by_model[curve.source, curve.model] if o is not curve
            ]
            if curve.source == "sia" and curve.sizes.size >= 5 and others:
                alone.append(_near(curve, places, []))
                helped.append(_near(curve, places, others))
        if helped:
            out[f"spline_mape_{name}"] = round(float(np.concatenate(alone).mean()), 3)
            out[f"family_mape_{name}"] = round(float(np.concatenate(helped).mean()), 3)
    return {**out, "cliffs": cliffs, "fit_ms": round(1e3 * took, 2), "curves": len(curves)}


def _near(curve: Measured, places: Sequence[float], like: Sequence[StepTimeCurve]) -> Array:
    """Return the errors in percent from sizes at ``places`` of the ranks, no further than a factor 4 from them."""
    sizes, seconds = curve.sizes, curve.seconds
    known = np.isin(np.arange(sizes.size), np.rint(np.array(places) * (sizes.size - 1)))
    asked = ~known & (sizes <= 4 * sizes[known].max()) & (sizes >= sizes[known].min() / 4)
    predicted = _fit(sizes[known], seconds[known], like).time(sizes[asked])
    return np.asarray(100 * np.abs(predicted / seconds[asked] - 1))


def _fit(sizes: Array, seconds: Array, like: Sequence[StepTimeCurve] = ()) -> StepTimeCurve:
    return StepTimeCurve.fit([Point(x, t) for x, t in zip(sizes, seconds, strict=True)], like)


def _screen(words: str, answers: Sequence[Answer], kind: str) -> Screen:
    table = Screen(title=f"{words}: error in percent")
    table.add_column("model")
    for name in ("targets", "mean", "median", "p90", "largest", "Gavel mean", "Gavel median"):
        table.add_column(name, justify="right")
    for name in MODELS:
        found, other = errors(answers, name, kind), errors(answers, name, kind, "gavel")
        if found.size:
            row = [found.mean(), np.median(found), np.quantile(found, 0.9), found.max()]
            row += [other.mean(), np.median(other)] if other.size else []
            table.add_row(name, str(found.size), *(f"{value:.2f}" for value in row))
    return table


if __name__ == "__main__":
    sys.exit(main())
