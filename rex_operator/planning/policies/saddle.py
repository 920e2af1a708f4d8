"""SADDLE, as far as it is public: noise-scale-guided batches, z-scores over time, PID on the shares, by events.

The paper's thresholds and gains are not public. One thing that is often read into it cannot be: a z-score across K
workers never exceeds (K-1)/sqrt(K) (Samuelson's inequality; 1.5 for four workers), so that "z > 2" would never fire. A
worker is therefore compared with its own past.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from rex_operator.planning.curves import Array
from rex_operator.planning.policies.base import About, Adoption, Rebalance, Scene
from rex_operator.planning.policies.following import Following, mean_times, running_shares

SMOOTHING = 0.2
"""Weight of the newest window in the moving average. This constant and all below are ours."""
WINDOW = 5
"""Steps per window."""
CLEAR, PERSISTENT = 2.0, 3
"""A z-score beyond the first in so many windows on end is an event ..."""
MATURE = 6
"""Windows of a plan before which a worker has no past to speak of."""
UNEVEN = 0.10
"""... and so is a worker whose time is off the mean by this part."""
FLOOR = 0.01
"""Least standard deviation, relative to the mean."""
KP, KI, KD = 0.5, 0.05, 0.1
LIMIT = 0.25
"""Largest part of its share that a worker gains or loses at once; the integral is held within it as well."""
NOISY, GROWTH = 1.5, 2
"""The batch is multiplied by the second when the noise scale passes so many batches."""


@dataclass(slots=True)
class Detector:
    """z of each worker's smoothed window times against its own past under one plan; arrays are per worker."""

    smoothed: Array
    mean: Array
    square: Array = field(init=False)
    windows: int = 1
    beyond: Array = field(init=False)
    """Windows on end with a z-score beyond `CLEAR`."""

    def __post_init__(self) -> None:
        """Begin without any spread."""
        self.square = np.zeros_like(self.mean)
        self.beyond = np.zeros(self.mean.size)

    def take(self, times: Array) -> Array:
        """Take in one window's mean times; return the z-scores."""
        self.smoothed = (1 - SMOOTHING) * self.smoothed + SMOOTHING * times
        deviation = np.maximum(np.sqrt(self.square / max(1, self.windows - 1)), FLOOR * self.mean)
        z: Array = (self.smoothed - self.mean) / deviation
        beyond = (np.abs(z) > CLEAR) & (self.windows >= MATURE)
        self.beyond = np.where(beyond, self.beyond + 1, 0.0)
        self.windows += 1
        difference = self.smoothed - self.mean
        self.mean = self.mean + difference / self.windows
        self.square = self.square + difference * (self.smoothed - self.mean)
        return z

    @property
    def fired(self) -> bool:
        """Return whether a worker's z-score stays beyond the bound."""
        return bool((self.beyond >= PERSISTENT).any())


class Pid:
    """The controller: relative time errors in, relative changes of the shares out."""

    def __init__(self, workers: int) -> None:
        self.integral = np.zeros(workers)
        self.last = np.zeros(workers)

    def act(self, times: Array) -> Array:
        """Return the part of its share that each worker is to lose; negative: to gain."""
        error = times / times.mean() - 1
        self.integral = np.clip(self.integral + KI * error, -LIMIT, LIMIT)
        out: Array = np.clip(KP * error + self.integral + KD * (error - self.last), -LIMIT, LIMIT)
        self.last = error
        return out


class Saddle(Following):
    """Event-driven loop over batch and shares."""

    about: ClassVar[About] = About(
        name="saddle",
        title="SADDLE",
        reference="SADDLE, Journal of Systems Architecture 168:103573, 2025, doi 10.1016/j.sysarc.2025.103573",
        rule=(
            "By events: the batch doubles while the noise scale passes 1.5 batches; z-scores of smoothed step times"
            " find stragglers; a PID controller on relative time errors moves the shares."
        ),
        ours=(
            "No threshold, gain or window is public: all constants, z over time per worker (across workers it cannot"
            " fire), windows of five steps, and an unevenness of 10 % as a second event."
        ),
        changes=("shares", "batch"),
    )

    def __init__(self) -> None:
        super().__init__()
        self._team: tuple[str, ...] = ()
        self._pid = Pid(0)
        self._detector: Detector | None = None
        self._plan: object = None
        self._read = 0

    def restarted(self) -> None:
        """Begin the controller anew."""
        self._team, self._detector = (), None

    def rebalance(self, scene: Scene) -> Rebalance | None:
        """Return the controller's next shares, when an event asks for them."""
        if len(scene.names) < 2:
            return None
        self._follow(scene)
        times = self._windows(scene)
        if times is None or self._detector is None:
            return None
        uneven = bool((np.abs(times / times.mean() - 1) > UNEVEN).any())
        if not (uneven or self._detector.fired):
            return None
        shares = running_shares(scene)
        wanted = shares * (1 - self._pid.act(times))
        self._detector = None
        return self.move(scene, dict(zip(scene.names, wanted.tolist(), strict=True)), times)

    def _follow(self, scene: Scene) -> None:
        """Begin anew with another team; the detector also with other shares."""
        if scene.names != self._team:
            self._team, self._pid = scene.names, Pid(len(scene.names))
            self._detector = None
        if scene.running != self._plan:
            self._plan, self._detector, self._read = scene.running, None, 0

    def _windows(self, scene: Scene) -> Array | None:
        """Let the detector see the windows that are new; return the smoothed times, None while nothing is new."""
        fresh = [s for s in scene.steps if s.step > self._read]
        news = False
        for begin in range(0, len(fresh) - WINDOW + 1, WINDOW):
            part = fresh[begin : begin + WINDOW]
            times = mean_times(part)
            self._read = part[-1].step
            if times is None:
                continue
            news = True
            if self._detector is None:
                self._detector = Detector(times, times)
            else:
                self._detector.take(times)
        return self._detector.smoothed if news and self._detector is not None else None

    def adopt(self, scene: Scene) -> Adoption | None:
        """Return twice the batch while the noise scale passes 1.5 batches and memory and the job's bounds allow it."""
        plan, noise = scene.running, scene.noise_scale
        if plan is None or noise is None or noise <= NOISY * plan.global_batch:
            return None
        most = scene.spec.batch.max
        ceilings = list(scene.ceilings().values())
        if all(cap is not None for cap in ceilings):
            most = min(most, plan.accumulation * sum(cap for cap in ceilings if cap is not None))
        batch = min(GROWTH * plan.global_batch, most)
        if batch <= plan.global_batch:
            return None
        why = f"The noise scale ({noise:.0f}) passes {NOISY:g} batches of {plan.global_batch}, so the batch grows."
        return Adoption(batch, plan.accumulation, why)
