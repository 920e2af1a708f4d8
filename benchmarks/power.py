"""How far are modelled watts, and profiles transferred from few points, from what was measured?

Watts: Zeus's power traces (one GPU, jobs by batch size, at the highest power limit). The planner's model knows a
device's idle and highest draw and how a job's rate grows with the batch; its two constants are fitted anew without the
job in question, so that the error is that of a job never seen. Then k measured points of the job are given, and the
rest is predicted: from the model as the reference (what the planner does with ``pools[].power.measured``), from the
same job on another device, from another job on the same device (PowerTrain's case), and without any reference, by
joining the points.

Step times: the same for the one-GPU curves of Sia, from the same model on another device and from another model on the
same device, beside a curve through the k points alone.

Shares: for mixes of made-up devices (affine step times, published power), how many joules other shares than those that
finish together would save, found by moving samples as long as that saves any; needs no data.

Errors are mean absolute percentage errors over the points that were not given; each profile counts alike. The data are
not part of the project: name the folder that holds ``zeus/`` (summary_power_*.csv) and ``sia/`` with ``--data`` or
REX_DATA, or the traces' own folder with ``--zeus``. What is not there is not measured. The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table as Screen

from rex_operator.api.watts import published
from rex_operator.planning.curves import Array, Point, StepTimeCurve
from rex_operator.planning.power import EXPONENT, PEAK, DevicePower, TeamPower, Transfer
from rex_operator.planning.split import Team, WorkerModel, split
from rex_operator.simulation.published import BadData, Table, sia, zeus

POINTS = (1, 2, 3, 5)
_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"
_HOST_BOUND = "ncf"
"""Its devices wait for the host at every batch: the model alone cannot know that, and nothing is fitted to it."""


@dataclass(frozen=True)
class Profile:
    """A measured profile: ``values`` (watts or seconds) at ``sizes``."""

    device: str
    job: str
    sizes: Array
    values: Array
    model: Array
    """What the planner's model says at the same sizes; empty where there is none."""

    def at(self, sizes: Array) -> Array:
        """Return the values at other sizes: straight in the logarithms, level outside."""
        return np.exp(np.interp(np.log(sizes), np.log(self.sizes), np.log(self.values)))


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.power", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("REX_DATA", _BESIDE)), help="zeus/, sia/")
    parser.add_argument("--zeus", type=Path, help="folder with summary_power_*.csv, if it lies elsewhere")
    options = parser.parse_args()
    console, figures = Console(), dict[str, object](benchmark="power")
    try:
        traces = zeus.unlimited(zeus.profiles(options.zeus or options.data / "zeus"))
        figures |= watts(traces, console)
    except BadData as error:
        console.print(f"power was not measured: {error}", highlight=False)
    try:
        figures |= step_times(sia.tables(options.data / "sia"), console)
    except BadData as error:
        console.print(f"step times were not measured: {error}", highlight=False)
    figures |= shares(console)
    console.file.flush()
    print(json.dumps(figures))
    return 0


# --- watts ------------------------------------------------------------------------------------------------------------


def watts(traces: Sequence[zeus.PowerProfile], console: Console) -> dict[str, object]:
    """Return the errors of modelled and of transferred watts."""
    busy = [trace for trace in traces if _HOST_BOUND not in trace.job]
    peak, exponent = fitted(busy)
    console.print(f"{len(traces)} profiles; fitted now: peak {peak:.2f}, exponent {exponent:.2f}")
    profiles = [profile_of(t, *fitted([b for b in busy if b.job != t.job])) for t in traces]
    busy_profiles = [p for p in profiles if _HOST_BOUND not in p.job]
    shipped = [profile_of(t, PEAK, EXPONENT) for t in busy]
    screen = Screen(title="Watts by the model alone (job never seen), error by profile", title_justify="left")
    for column in ("device", "job", "sizes", "error"):
        screen.add_column(column)
    for p in profiles:
        screen.add_row(p.device, p.job, str(p.sizes.size), f"{error(p.model, p.values):.1%}")
    console.print(screen)
    found: dict[str, object] = {
        "power_peak": round(peak, 3),
        "power_exponent": round(exponent, 3),
        "power_model_mape": mean(error(p.model, p.values) for p in busy_profiles),
        "power_model_mape_host_bound": mean(error(p.model, p.values) for p in profiles if _HOST_BOUND in p.job),
        "power_shipped_mape": mean(error(p.model, p.values) for p in shipped),
    }
    found |= _transferred(console, "power", profiles, {"model": lambda p: [p.model], **_references(profiles)})
    return found


def profile_of(trace: zeus.PowerProfile, peak: float, exponent: float) -> Profile:
    """Return a trace's watts beside the model's, with these constants."""
    device = device_of(trace)
    part = peak * filling(trace) ** exponent
    sizes, drawn = (np.array([getattr(r, name) for r in trace.rows], dtype=float) for name in ("batch", "watts"))
    return Profile(trace.device, trace.job, sizes, drawn, device.idle + (device.limit - device.idle) * part)


def device_of(trace: zeus.PowerProfile) -> DevicePower:
    """Return what the planner would know: the published idle draw, and the limit that was set."""
    known = published(trace.device)
    return DevicePower(trace.limit * 0.15 if known is None else known.idle, trace.limit)


def filling(trace: zeus.PowerProfile) -> Array:
    """Return how well each batch fills the device: its rate over the best one's."""
    rate = 1 / np.array([row.epoch_s for row in trace.rows])
    return np.asarray(rate / rate.max())


def fitted(traces: Sequence[zeus.PowerProfile]) -> tuple[float, float]:
    """Return the peak and the exponent with the least error, by looking at a grid."""
    grid = [(peak, exponent) for peak in np.arange(0.3, 1.005, 0.02) for exponent in np.arange(0.0, 1.501, 0.05)]

    def total(constants: tuple[float, float]) -> float:
        return mean(error(p.model, p.values) for p in (profile_of(t, *constants) for t in traces))

    return min(grid, key=total)


# --- step times -------------------------------------------------------------------------------------------------------


def step_times(tables: Sequence[Table], console: Console) -> dict[str, object]:
    """Return the errors of transferred step times, over one-GPU tables with enough sizes."""
    single = [t for t in tables if t.replicas == 1 and t.nodes == 1 and len(t.rows) >= 6]
    longest: dict[tuple[str, str], Table] = {}
    for table in single:
        kept = longest.setdefault((table.model, table.device), table)
        if len(table.rows) > len(kept.rows):
            longest[table.model, table.device] = table
    profiles = [
        Profile(
            t.device,
            t.model,
            np.array([float(r.local_batch) for r in t.rows]),
            np.array([r.step_s for r in t.rows]),
            np.empty(0),
        )
        for t in longest.values()
    ]
    console.print(f"{len(profiles)} one-GPU curves of Sia with six sizes or more")
    return _transferred(console, "step", profiles, _references(profiles, times=True))


# --- shares -----------------------------------------------------------------------------------------------------------

DEVICES = {"a100": (0.006, 0.0002), "v100": (0.010, 0.00045), "t4": (0.018, 0.0011)}
"""Made up: seconds per micro-batch and per sample."""
MIXES = (("a100", "v100"), ("a100", "t4"), ("v100", "t4"), ("a100", "a100", "v100", "t4"))
BATCHES = (64, 256, 1024)
_OVERHEAD_S = 0.004


def shares(console: Console) -> dict[str, object]:
    """Return what shares chosen for joules would save at most over those that finish together."""
    screen = Screen(title="Joules that other shares would save", title_justify="left")
    for column in ("mix", "batch", "shares that finish together", "saved", "slower", "shares for joules"):
        screen.add_column(column)
    found = []
    for mix in MIXES:
        for batch in BATCHES:
            together, thrifty, saved, slower = _thriftiest(mix, batch)
            screen.add_row("+".join(mix), str(batch), str(together), f"{saved:.1%}", f"{slower:.0%}", str(thrifty))
            found.append(saved)
    console.print(screen)
    return {"shares_saved_max": round(max(found), 4), "shares_saved_mean": mean(found)}


def _thriftiest(mix: Sequence[str], batch: int) -> tuple[list[int], list[int], float, float]:
    models = [WorkerModel(f"w{i}", _made_up(*DEVICES[kind])) for i, kind in enumerate(mix)]
    known = [found for kind in mix if (found := published(kind)) is not None]
    team, power = Team(models), TeamPower(models, [DevicePower(k.idle, k.max_watts) for k in known])

    def cost(shares: Array) -> tuple[float, float]:
        compute = team.times(shares, 1)
        step_s = float(compute.max()) + _OVERHEAD_S
        return float(power.joules(power.busy(shares, 1), compute, step_s)), step_s

    together = np.array(list(split(models, batch).values()), dtype=float)
    best, amount = together.copy(), max(1, batch // 32)
    while amount:
        moves = [
            best + amount * ((np.arange(len(mix)) == to).astype(float) - (np.arange(len(mix)) == of))
            for of, to in itertools.permutations(range(len(mix)), 2)
            if best[of] > amount
        ]
        better = min(moves, key=cost, default=best)
        if cost(better) < cost(best):
            best = better
        else:
            amount //= 2
    (before, step_s), (after, longer_s) = cost(together), cost(best)
    whole = [[int(share) for share in shares] for shares in (together, best)]
    return whole[0], whole[1], 1 - after / before, longer_s / step_s - 1


def _made_up(fixed: float, each: float) -> StepTimeCurve:
    return StepTimeCurve.fit([Point(float(2**i), fixed + each * 2**i, 1e-6) for i in range(11)])


# --- what all share --------------------------------------------------------------------------------------------------

References = Callable[[Profile], list[Array]]
"""Reference values at a profile's own sizes, one array per reference."""


def _references(profiles: Sequence[Profile], *, times: bool = False) -> dict[str, References]:
    def values(reference: Profile, sizes: Array) -> Array:
        if not times:
            return reference.at(sizes)
        points = [Point(b, s) for b, s in zip(reference.sizes.tolist(), reference.values.tolist(), strict=True)]
        return StepTimeCurve.fit(points).time(sizes)

    def other_device(p: Profile) -> list[Array]:
        return [values(r, p.sizes) for r in profiles if r.job == p.job and r.device != p.device]

    def other_job(p: Profile) -> list[Array]:
        return [values(r, p.sizes) for r in profiles if r.device == p.device and r.job != p.job and _overlap(r, p)]

    return {"other device": other_device, "other job": other_job}


def _overlap(a: Profile, b: Profile) -> bool:
    """Whether a's sizes speak for most of b's."""
    return bool(((b.sizes >= a.sizes[0]) & (b.sizes <= a.sizes[-1])).mean() >= 0.5)


def _transferred(
    console: Console, kind: str, profiles: Sequence[Profile], references: dict[str, References]
) -> dict[str, object]:
    errors: dict[tuple[str, int], list[float]] = defaultdict(list)
    for profile in profiles:
        for given, rest in _given(profile.sizes.size):
            truth = profile.values[rest]
            errors["points alone", len(given)].append(error(_alone(kind, profile, given)[rest], truth))
            for name, of in references.items():
                made = [_error_by(profile, reference, given, rest) for reference in of(profile)]
                if made:
                    errors[name, len(given)].append(mean(made))
    screen = Screen(title=f"{kind}: error of the points that were not given", title_justify="left")
    names = [*references, "points alone"]
    for column in ("points", *names):
        screen.add_column(column)
    for k in POINTS:
        screen.add_row(str(k), *(f"{mean(errors[n, k]):.1%} ({len(errors[n, k])})" for n in names))
    console.print(screen)
    return {f"{kind}_{name.replace(' ', '_')}_mape_{k}": mean(errors[name, k]) for name in names for k in POINTS}


def _error_by(profile: Profile, reference: Array, given: Array, rest: Array) -> float:
    transfer = Transfer.fit(profile.sizes[given], reference[given], profile.values[given])
    return error(transfer(profile.sizes[rest], reference[rest]), profile.values[rest])


def _given(sizes: int) -> Iterator[tuple[Array, Array]]:
    """Give the places of k points, spread evenly, and of the rest, for each k that leaves three or more."""
    for k in POINTS:
        if sizes - k >= 3:
            given = np.unique(np.rint((np.arange(k) + 0.5) / k * (sizes - 1)).astype(int))
            yield given, np.setdiff1d(np.arange(sizes), given)


def _alone(kind: str, profile: Profile, given: Array) -> Array:
    """Predict all sizes from the given points only: watts by joining them, times by a curve as the planner has it."""
    sizes, values = profile.sizes[given], profile.values[given]
    if kind == "power":
        return Profile("", "", sizes, values, np.empty(0)).at(profile.sizes)
    points = [Point(b, s) for b, s in zip(sizes.tolist(), values.tolist(), strict=True)]
    return StepTimeCurve.fit(points).time(profile.sizes)


def error(predicted: Array, measured: Array) -> float:
    """Return the mean absolute relative error."""
    return float(np.abs(predicted / measured - 1).mean())


def mean(values: Sequence[float] | Iterator[float]) -> float:
    """Return the mean, rounded; NaN of nothing would be no JSON, so nothing is 0."""
    kept = list(values)
    return round(float(np.mean(kept)), 4) if kept else 0.0


if __name__ == "__main__":
    sys.exit(main())
