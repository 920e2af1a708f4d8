"""Keeps what is known of the devices in step with what the running window shows.

Curves learn once per plan, from the first steady steps after the shares changed; later steps of the same plan only say
how fast each worker is now. A sudden change of one worker cuts the window: what lies before it describes another
machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from rex_operator.planning.devices import Devices, Sighting
from rex_operator.planning.share_loop import SKIPPED, ShareLoop, doubt
from rex_operator.planning.split import Team
from rex_operator.planning.statistics import autocorrelation_time, midmean
from rex_operator.planning.straggler import RATIO, RECENT, SpeedChange, find_change
from rex_operator.planning.types import WorkerInfo
from rex_operator.planning.windows import GroupStep, Window

LEARN_STEPS = RECENT
"""Steady steps before a window teaches anything."""
REFRESH_STEPS = 20
"""New steps after which the workers' speeds are taken anew."""
LATEST = 200
"""Steps that the medians are taken over, at most."""
_TIMER = 1e-4
"""Floor of a median's standard error (of the log): clocks are coarse, and identical values are not certainty."""
_SAMPLED = 8
"""Workers whose series tell how dependent neighbouring steps are."""
_MOST_DEPENDENT = 9.0


class Gauge:
    """Reads a window; ``overhead_s``, ``step_s`` and ``error`` describe its latest steps."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self.overhead_s = 0.0
        """Usual seconds per step beside the slowest worker's compute."""
        self.step_s = 0.0
        """Usual seconds per step."""
        self.error = 0.0
        """Standard error of the log of a worker's usual compute time."""
        self.step_error = 0.0
        """... and of the log of the group's step time."""
        self.learned = 0
        """Steps of the window when last learned from; 0: not yet."""
        self._looked = -1
        self._loop = ShareLoop()
        self._familiar = False

    def restart(self, familiar: bool = False) -> None:
        """A new window begins; ``familiar``: of the same batch and team as the last one, only the shares are others."""
        self._familiar = familiar and (self._familiar or self.learned > 0)
        self.learned = 0
        self._looked = -1

    def read(
        self, window: Window, workers: Mapping[str, WorkerInfo], accumulation: int, at: float
    ) -> SpeedChange | None:
        """Learn what is new; return the change of a worker's speed that was found, if any."""
        counted = window.counted()
        newest = counted[-1].step if counted else -1
        if newest == self._looked:
            return None
        self._looked = newest
        jump = self._jump(counted, window, workers, accumulation, at)
        if jump is not None:
            return jump
        steps = window.ripe()
        change = find_change(steps) if self.learned else None
        if change is not None:
            window.restart(change.step)
            self._learn(window, workers, accumulation, at, moved=False)
        elif not self.learned and len(steps) >= LEARN_STEPS:
            self._learn(window, workers, accumulation, at, moved=True)
        elif self.learned and len(steps) >= self.learned + REFRESH_STEPS:
            self._learn(window, workers, accumulation, at, moved=False)
        return change

    def _jump(
        self,
        counted: Sequence[GroupStep],
        window: Window,
        workers: Mapping[str, WorkerInfo],
        accumulation: int,
        at: float,
    ) -> SpeedChange | None:
        """Look for a jump of one worker's speed; it alone is known anew then, from the steps since."""
        if not (self.learned or self._familiar) or len(workers.keys() & window.shares.keys()) < max(2, len(workers)):
            return None
        models = self._devices.models([workers[name] for name in window.workers], at)
        if models is None:
            return None
        micro = np.array(list(window.shares.values())) / accumulation
        expected = Team(models).times(micro * accumulation, accumulation)
        first = window.since if self.learned else window.first + SKIPPED
        steps = [s for s in counted[-2 * RECENT :] if s.step >= first]
        least = np.full(micro.size, math.log(RATIO)) if self.learned else doubt(models, micro)
        jump = self._loop.look(steps, window.workers, expected, least)
        if jump is None:
            return None
        window.restart(jump.step)
        worker = window.workers[jump.worker]
        micro_batch = window.shares[worker] / accumulation
        seconds = float(np.median([s.compute_s[jump.worker] for s in steps if s.step >= jump.step])) / accumulation
        self._devices.learn([Sighting(workers[worker], micro_batch, seconds, self.error**2)], at, moved=False)
        self.step_s = float(np.median([s.step_s for s in steps if s.step >= jump.step]))
        self.learned = max(1, len(window.ripe())) if self.learned else 0
        return jump

    def _learn(
        self, window: Window, workers: Mapping[str, WorkerInfo], accumulation: int, at: float, moved: bool
    ) -> None:
        steps = window.ripe()
        self.learned = len(steps)
        latest = steps[-LATEST:]
        compute = np.array([s.compute_s for s in latest])
        times = np.array([s.step_s for s in latest])
        logs = np.log(np.maximum(compute, 1e-9))
        self._loop.learn(window.workers, logs)
        shown = range(0, logs.shape[1], max(1, logs.shape[1] // _SAMPLED))
        tau = min(autocorrelation_time([logs[:, i] for i in shown]), _MOST_DEPENDENT)
        log_step, step_error = midmean(np.log(np.maximum(times, 1e-9)))
        self.step_s = math.exp(log_step)
        self.step_error = max(_TIMER, step_error * math.sqrt(tau))
        self.overhead_s = max(0.0, midmean(times - compute.max(axis=1))[0])
        middles = [midmean(series) for series in logs.T]
        errors = [max(_TIMER, error * math.sqrt(tau)) for _, error in middles]
        self.error = float(np.median(errors))
        sightings = [
            Sighting(workers[worker], window.shares[worker] / accumulation, math.exp(level) / accumulation, error**2)
            for worker, (level, _), error in zip(window.workers, middles, errors, strict=True)
            if worker in workers
        ]
        self._devices.learn(sightings, at, moved)
