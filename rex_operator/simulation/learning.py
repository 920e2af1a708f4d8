"""What a step is worth: a simulated job must get as far as the published run did, not merely as many samples.

Progress is counted in useful samples: those of the base batch, at which none is wasted. A step over B samples is worth
B (phi + m0) / (phi + B) of them (Pollux, OSDI 2021; McCandlish et al. 2018), with the noise scale phi as measured at
that point of the published run. So a larger batch is worth little early in training and much late.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rex_operator.planning.noise import efficiency
from rex_operator.planning.statistics import Sample
from rex_operator.simulation.published.pollux import Trajectory

NoiseScale = Callable[[float], float]
"""The noise scale, in samples, by progress in useful samples."""


@dataclass(frozen=True, eq=False)
class Course:
    """The course of a published run, shortened to a given number of steps; never longer than it was."""

    base_batch: int
    target: float
    """Useful samples of the whole job."""
    steps: int
    """Steps of the initial batch that they take."""
    shortened: float
    """Useful samples of the published run for each one here."""
    _progress: Sample
    _log_scale: Sample

    @classmethod
    def of(cls, run: Trajectory, batch: int, steps: int) -> Course:
        """Return the course of a base-batch run, such that ``steps`` steps of ``batch`` samples reach its end.

        Where the published run was shorter than that, in steps of this batch, the course is the run itself. The noise
        scale is taken over the part of the way done, so it rises as it did over the whole published run; its logarithm
        is linear between epochs. Epochs with no estimate are left out.
        """
        told = np.isfinite(run.noise_scale) & (run.noise_scale > 0)
        way, scale = run.progress[told] / run.progress[-1], np.log(run.noise_scale[told])
        parts = np.linspace(0.0, 1.0, 1001)
        noise = np.exp(np.interp(parts, way, scale))
        base = run.base_batch
        worth = batch * (noise + base) / (noise + batch)
        each, whole = float(np.mean(1 / worth)), float(run.progress[-1]) * base
        target = min(steps / each, whole)
        return cls(base, target, round(target * each), whole / target, way * target, scale)

    def noise_scale(self, progress: float) -> float:
        """Return the noise scale in samples; before the first epoch's end and after the last one's it stays."""
        return math.exp(float(np.interp(progress, self._progress, self._log_scale)))


def worth(noise_scale: float, batch: int, base_batch: int) -> float:
    """Return the useful samples of a step over ``batch`` samples."""
    return batch * efficiency(noise_scale, batch, base_batch)
