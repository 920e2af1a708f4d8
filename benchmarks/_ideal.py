"""How fast could a job be at best? A bound that no policy beats, so that a reader sees how much is left to win.

At each moment of a cell's course the batch, the shares and every worker's passes are the best ones for the devices as
they truly are, and each change is made at once and for nothing: no measuring, no trial, no step under an old plan. Only
the seconds in which a changed group forms anew count. Where the truth has noise the bound has none.

A plan whose slowest worker computes for T seconds has at most the samples that all workers together can do in T, and
hides no more of the exchange than the longest pass that fits into T. So the best rate is looked for among a thousand T,
not among plans, each with what can be done up to the next T: that is at most half a percent too good. A step that
begins just before its device slows down may be faster than the bound says, one in some hundred.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks._cells import SCENARIOS, Cell, load
from rex_operator.simulation.devices import Device
from rex_operator.simulation.scenario import Scenario
from rex_operator.simulation.workload import OVERHEAD_S, REGROUP_S, Workload

Array = npt.NDArray[np.float64]

_DEADLINES = 1000
"""Compute times T that are looked at."""
_STRETCHES = 100
"""Parts of the way over which the noise scale is taken as constant; more where something happens."""
_IN_VAIN = 3
"""After so many passes more that are faster for no share, still more are not either."""

Group = tuple[tuple[Device, float], ...]
"""The workers' devices, and how many times longer each takes than its device would."""


def ideals(folder: Path, cells: Iterable[Cell], steps: int) -> dict[Cell, float]:
    """Return the least seconds to the target in each cell. Raises ``BadData``."""
    of: dict[tuple[str, str], Ideal] = {}
    found = {}
    for cell in cells:
        work = load(folder, cell.model, cell.mix, steps)
        ideal = of.setdefault((cell.model, cell.mix), Ideal(work))
        found[cell] = ideal.seconds(SCENARIOS[cell.scenario](work.devices))
    return found


class Ideal:
    """The best that can be had from a workload; what was worked out for a group serves all scenarios."""

    def __init__(self, work: Workload) -> None:
        self._work = work
        self._fastest: dict[Device, Array] = {device: fastest(device, work.largest) for device in set(work.devices)}
        self._plans: dict[Group, tuple[Array, Array]] = {}

    def seconds(self, scenario: Scenario) -> float:
        """Return the seconds to the target, whatever happens on the way."""
        course, total = self._work.course, 0.0
        for begin, end, group, formed in _stretches(scenario, self._work.devices):
            if group not in self._plans:
                self._plans[group] = self._best_plans(group)
            batches, steps = self._plans[group]
            phi = course.noise_scale((begin + end) / 2 * course.target)
            useful = batches * (phi + course.base_batch) / (phi + batches)
            total += (end - begin) * course.target / float((useful / steps).max()) + formed * REGROUP_S
        return total

    def _best_plans(self, group: Group) -> tuple[Array, Array]:
        """Return the largest batches, and the seconds of a step over each at least."""
        largest = self._work.largest
        low = max(slow * self._fastest[device][1] for device, slow in group)
        high = min(slow * self._fastest[device][-1] for device, slow in group)
        deadlines = np.geomspace(low, max(low, high), _DEADLINES)
        done = np.array([np.searchsorted(self._fastest[d], deadlines / slow, side="right") - 1 for d, slow in group])
        batches = np.minimum(done.sum(axis=0), largest)
        exchange = self._work.communication.seconds
        may = batches >= max(self._work.course.base_batch, len(group))
        may[1:] &= batches[:-1] < largest
        computing = np.concatenate([deadlines[:1], deadlines[:-1]])[may]
        after = [
            OVERHEAD_S + exchange((d, min(n, d.most or n)) for (d, _), n in zip(group, shares, strict=True))
            for shares in done.T[may].tolist()
        ]
        return batches[may].astype(np.float64), computing + np.array(after)


def fastest(device: Device, largest: int) -> Array:
    """Return the least seconds in which a device does so many samples or more, for 0 to ``largest`` samples.

    It takes them in the number of passes that is fastest, each within its memory.
    """
    most = min(device.most or largest, largest)
    sizes, times = np.arange(most + 1.0), np.array([0.0, *(device.seconds(n) for n in range(1, most + 1))])
    shares, best = np.arange(largest + 1.0), np.full(largest + 1, np.inf)
    passes = in_vain = 0
    while in_vain < _IN_VAIN:
        passes += 1
        seconds = np.where(shares <= passes * most, passes * np.interp(shares / passes, sizes, times), np.inf)
        seconds[1:passes] = np.inf  # no pass is empty
        in_vain = 0 if passes * most < largest or (seconds < best).any() else in_vain + 1
        best = np.minimum(best, seconds)
    best[0] = 0.0
    ascending: Array = np.minimum.accumulate(best[::-1])[::-1]
    return ascending


def _stretches(scenario: Scenario, devices: Sequence[Device]) -> Iterator[tuple[float, float, Group, bool]]:
    """Yield parts of the way: from where to where, the group on it, and whether that formed anew at its begin."""
    events, present, slow = list(scenario.events), dict(enumerate(devices)), dict.fromkeys(range(len(devices)), 1.0)
    marks = sorted({*np.linspace(0.0, 1.0, _STRETCHES + 1).tolist(), *(event.at for event in events)})
    for begin, end in pairwise(marks):
        formed = False
        while events and events[0].at <= begin:
            event = events.pop(0)
            slow |= event.slow
            for place in event.leave:
                del present[place]
            for place, device in event.join.items():
                present[place], slow[place] = device, 1.0
            formed = formed or bool(event.leave or event.join)
        yield begin, end, tuple((present[place], slow[place]) for place in sorted(present)), formed
