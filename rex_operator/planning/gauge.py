"""Keeps what is known of the devices in step with what the running window shows.

Curves learn once per plan, from the first steady steps after the shares changed; later steps of the same plan only say
how fast each worker is now. A sudden change of one worker cuts the window: what lies before it describes another
machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from rex_operator.planning.communication import KeptExchange
from rex_operator.planning.devices import Devices, Sighting
from rex_operator.planning.share_loop import DRIFT_STEPS, SKIPPED, ShareLoop, doubt
from rex_operator.planning.split import Team
from rex_operator.planning.statistics import Sample, autocorrelation_time, midmean
from rex_operator.planning.straggler import RATIO, RECENT, SpeedChange, find_change
from rex_operator.planning.types import PlanDraft, WorkerInfo
from rex_operator.planning.windows import GroupStep, Window

LEARN_STEPS = RECENT
"""Steady steps before a window teaches anything."""
EARLY_STEPS = 5
"""First steps of a trial's plan that teach for the time being ..."""
STEADY = 0.15
"""... if each worker's times lie within so much (of the log) of their median: caches and compilers are done then."""
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
        self.cost: KeptExchange | None = None
        """What steps cost beside computing, when last learned from."""
        self.step_s = 0.0
        """Usual seconds per step."""
        self.error = 0.0
        """Standard error of the log of a worker's usual compute time."""
        self.step_error = 0.0
        """... and of the log of the group's step time."""
        self.learned = 0
        """Steps of the window when last learned from; 0: not yet."""
        self.early: Sequence[GroupStep] = ()
        """Steps that were learned from before the window's warm-up was over."""
        self._looked = -1
        self._loop = ShareLoop()
        self._familiar = False
        self.drifting = False
        """Whether the last look found a worker's speed drifting, and took its latest steps for what it does now."""
        self._latest_from = self._adjusted = 0
        """The first step that counts for the models, if not all ripe ones do; the last one that was taken in."""
        self._tau = 1.0

    def restart(self, familiar: bool = False) -> None:
        """A new window begins; ``familiar``: of the same batch and team as the last one, only the shares are others."""
        self._familiar = familiar and (self._familiar or self.learned > 0)
        self.early = ()
        self.learned = self._latest_from = self._adjusted = 0
        self._looked = -1

    def read(
        self, window: Window, workers: Mapping[str, WorkerInfo], plan: PlanDraft, at: float, *, eager: bool = False
    ) -> SpeedChange | None:
        """Learn what is new under ``plan``; return the change of a worker's speed that was found, if any.

        ``eager``: learn from a new plan's first steady steps, for the time being; a trial's plan is often far off.
        """
        self.drifting = False
        counted = window.counted()
        newest = counted[-1].step if counted else -1
        if newest == self._looked:
            return None
        self._looked = newest
        expected = self._expected(window, workers, plan, at)
        jump = None if expected is None else self._jump(expected, window, workers, plan, at)
        if jump is not None:
            return jump
        steps = window.ripe()
        change = find_change(steps) if self.learned and not self.early else None
        if change is not None:
            window.restart(change.step)
            self._learn(window, workers, plan, at, moved=False)
        elif expected is not None and self._drifted(expected[0], window):
            self.drifting = True
            self._learn(window, workers, plan, at, moved=not self.learned)
        elif (not self.learned or self.early) and len(steps) >= LEARN_STEPS:
            self.early = ()
            self._learn(window, workers, plan, at, moved=True)
        elif eager and not self.learned and (steady := _first_steady(window)):
            self.early, self._latest_from = steady, steady[0].step
            self._learn(window, workers, plan, at, moved=True)
            self._latest_from = 0
        elif self.learned and len(steps) >= self.learned + REFRESH_STEPS:
            self._learn(window, workers, plan, at, moved=False)
        return change

    def _expected(
        self, window: Window, workers: Mapping[str, WorkerInfo], plan: PlanDraft, at: float
    ) -> tuple[Sample, Sample] | None:
        """Return the workers' compute seconds by their models, and the logs of the least jumps that count beside them.

        None while there is nothing to go by.
        """
        if not (self.learned or self._familiar):
            return None
        if len(workers.keys() & window.shares.keys()) < max(2, len(workers)):
            return None
        models = self._devices.models([workers[name] for name in window.workers], at)
        if models is None:
            return None
        shares = np.array(list(window.shares.values()), dtype=np.float64)
        passes = np.array([plan.passes_of(name) for name in window.workers])
        least = np.full(shares.size, math.log(RATIO)) if self.learned else doubt(models, shares / passes)
        return Team(models).times(shares, passes), least

    def _drifted(self, expected: Sample, window: Window) -> bool:
        """Return whether the latest steps have left the models; then only they count from now on.

        That they have settled is not asked for: what drifts never does, and a worker's own time needs no group.
        """
        begin = max(window.since, window.first + SKIPPED, self._adjusted + 1)
        latest = [s for s in window.counted()[-DRIFT_STEPS:] if s.step >= begin]
        if len(latest) < DRIFT_STEPS or not self._loop.drifting(latest, window.workers, expected, self._tau):
            return False
        self._latest_from = latest[0].step
        return True

    def _jump(
        self,
        expected: tuple[Sample, Sample],
        window: Window,
        workers: Mapping[str, WorkerInfo],
        plan: PlanDraft,
        at: float,
    ) -> SpeedChange | None:
        """Look for a jump of a worker's speed; who moved is known anew then, from the steps since."""
        first = window.since if self.learned else window.first + SKIPPED
        steps = [s for s in window.counted()[-2 * RECENT :] if s.step >= first]
        jump = self._loop.look(steps, window.workers, *expected)
        if jump is None:
            return None
        change = jump.change
        window.restart(change.step)
        since = [s for s in steps if s.step >= change.step]
        seconds = np.median([s.compute_s for s in since], axis=0)
        names = [(window.workers[i], plan.passes_of(window.workers[i]), float(seconds[i])) for i in jump.workers]
        sightings = [Sighting(workers[w], window.shares[w] / p, t / p, self.error**2) for w, p, t in names]
        self._devices.learn(sightings, at, moved=False)
        self.step_s = float(np.median([s.step_s for s in since]))
        self.learned = max(1, len(window.ripe())) if self.learned else 0
        self._latest_from, self._adjusted = 0, steps[-1].step
        return change

    def _learn(
        self, window: Window, workers: Mapping[str, WorkerInfo], plan: PlanDraft, at: float, moved: bool
    ) -> None:
        steps = window.ripe()
        if self._latest_from:
            steps = [s for s in window.counted() if s.step >= self._latest_from]
        latest = steps[-LATEST:]
        self.learned, self._adjusted = max(1, len(window.ripe())), latest[-1].step
        compute = np.array([s.compute_s for s in latest])
        times = np.array([s.step_s for s in latest])
        logs = np.log(np.maximum(compute, 1e-9))
        self._loop.learn(window.workers, logs)
        shown = range(0, logs.shape[1], max(1, logs.shape[1] // _SAMPLED))
        tau = min(autocorrelation_time([logs[:, i] for i in shown]), _MOST_DEPENDENT)
        self._tau = tau if len(latest) >= 2 * LEARN_STEPS else max(tau, self._tau)
        log_step, step_error = midmean(np.log(np.maximum(times, 1e-9)))
        self.step_s = math.exp(log_step)
        self.step_error = max(_TIMER, step_error * math.sqrt(tau))
        slowest = compute.max(axis=1)
        beside, beside_error = midmean(times - slowest)
        self.overhead_s = max(0.0, beside)
        told = np.array([s.comm_s for s in latest])
        self.cost = KeptExchange(
            workers=len(window.workers),
            global_batch=sum(window.shares.values()),
            accumulation=plan.accumulation,
            compute_s=midmean(slowest)[0],
            overhead_s=self.overhead_s,
            comm_s=float(np.median(told)) if np.isfinite(told).all() else None,
            variance=tau * beside_error**2,
        )
        middles = [midmean(series) for series in logs.T]
        errors = [max(_TIMER, error * math.sqrt(tau)) for _, error in middles]
        self.error = float(np.median(errors))
        sightings = [
            Sighting(workers[worker], window.shares[worker] / passes, math.exp(level) / passes, error**2)
            for worker, (level, _), error in zip(window.workers, middles, errors, strict=True)
            if worker in workers and (passes := plan.passes_of(worker))
        ]
        self._devices.learn(sightings, at, moved)
        peaks = np.max([s.peak_bytes for s in latest], axis=0)
        for worker, peak in zip(window.workers, peaks, strict=True):
            if worker in workers:
                self._devices.used(workers[worker], plan.micro_batch(worker), float(peak))


def _first_steady(window: Window) -> Sequence[GroupStep]:
    """Return the plan's first steps, once there are enough in which each worker takes about the same time; or none."""
    steps = [s for s in window.counted() if s.step >= window.first + SKIPPED][-EARLY_STEPS:]
    if len(steps) < EARLY_STEPS:
        return ()
    logs = np.log(np.maximum([s.compute_s for s in steps], 1e-9))
    return steps if float(np.abs(logs - np.median(logs, axis=0)).max()) <= STEADY else ()
