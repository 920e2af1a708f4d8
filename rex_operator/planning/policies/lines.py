"""A straight line per worker, t = c + m b, from what the worker itself has run: the model of BOA and LB-BSP.

Their papers profile beforehand; a job here learns while it trains. One size gives a line through the origin; more give
least squares; and when the present measurement is not what the line says, the worker has changed, and the line is
scaled to the present and its past forgotten.
"""

from __future__ import annotations

import numpy as np

from rex_operator.planning.curves import Array, StepTimeCurve
from rex_operator.planning.policies.base import Scene
from rex_operator.planning.policies.following import life
from rex_operator.planning.split import WorkerModel

SIZES = 8
"""Sizes that a line goes by, the last ones."""
CHANGED = 0.1
"""Relative deviation from the line that means: the worker has changed."""

FLAT_SIZE, FLAT_TIME = 1.1, 1.02
"""A floor is seen where a size larger by the first factor takes at most the second one longer."""


class Lines:
    """Sizes and times of each worker's life."""

    def __init__(self) -> None:
        self._points: dict[str, dict[float, float]] = {}

    def models(self, scene: Scene, micro: Array, seconds: Array) -> list[WorkerModel]:
        """Take in the present sizes and times (per micro-batch, in the order of ``scene.names``); return the lines.

        Each line passes through the present measurement.
        """
        workers = {w.worker_id: w for w in scene.workers}
        self._points = {life(w): self._points.get(life(w), {}) for w in scene.workers}
        ceilings = scene.ceilings()
        models = []
        for name, size, time in zip(scene.names, micro.tolist(), seconds.tolist(), strict=True):
            points = self._points[life(workers[name])]
            elasticity = _elasticity(points, size, time)
            points.pop(size, None)
            points[size] = time
            while len(points) > SIZES:
                del points[next(iter(points))]
            models.append(
                WorkerModel(name, StepTimeCurve((size,), (time,), elasticity, elasticity), cap=ceilings[name])
            )
        return models

    def floors(self, scene: Scene) -> Array:
        """Return per worker the seconds of a micro-batch that no smaller one falls below; 0 while none was seen.

        A floor shows where the two smallest sizes differ and their times do not.
        """
        workers = {w.worker_id: w for w in scene.workers}
        floors = np.zeros(len(scene.names))
        for i, name in enumerate(scene.names):
            smallest = sorted(self._points[life(workers[name])].items())[:2]
            if len(smallest) == 2 and smallest[1][0] >= FLAT_SIZE * smallest[0][0]:
                low, high = sorted(time for _, time in smallest)
                floors[i] = low if high <= FLAT_TIME * low else 0.0
        return floors


def _elasticity(points: dict[float, float], size: float, time: float) -> float:
    """Return the slope at the present point in units of its time per size; forget points that it contradicts."""
    if len(points) >= 2 or size in points:
        slope, level = _fit(points)
        predicted = max(level + slope * size, 1e-9)
        if abs(time - predicted) > CHANGED * predicted:
            points.clear()
            return _plausible(slope * size / predicted)
    slope = _fit({**points, size: time})[0]
    if slope <= 0:  # no device is slower with less: it is another one now
        points.clear()
        return 1.0
    return _plausible(slope * size / time)


def _plausible(elasticity: float) -> float:
    return min(max(elasticity, 0.02), 1.0)


def _fit(points: dict[float, float]) -> tuple[float, float]:
    """Return slope and intercept; through the origin for one size."""
    sizes, times = np.array(list(points)), np.array(list(points.values()))
    if sizes.size < 2:
        return float(times[0] / sizes[0]), 0.0
    centred = sizes - sizes.mean()
    slope = float(centred @ times / (centred @ centred))
    return slope, float(times.mean() - slope * sizes.mean())
