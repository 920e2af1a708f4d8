"""How many watts does a device draw at a micro-batch, and how many joules does a step cost?

A worker does not meter itself here, so watts are modelled: a device that waits draws its idle power, and one that
computes draws the more the better it is filled. How well a micro-batch of b samples fills a device needs no meter: the
step-time curve says it, as the rate at b over the highest rate that the device comes to. Two constants, fitted to
published measurements, turn that into watts; they are a middle over jobs, and a single job differs from it (`docs/
planner.md` gives the error). A few measured watts of the very job cure that: the model is kept as the shape, an affine
law in logarithms, drawn towards "as the model says", leads from it to the measured points, and what is left of them is
interpolated. The same `Transfer` leads from any reference profile with many points to a new one with few.

After PowerTrain (arXiv 2407.13944): there two networks are trained on a reference and re-trained with 50 points of the
new job; with two to five points a network has nothing to learn from, and two numbers have. The regression and all
constants are this project's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rex_operator.planning.curves import Array, StepTimeCurve
from rex_operator.planning.split import WorkerModel

PEAK = 0.66
"""Part of the range from idle to limit that a filled device draws ..."""
EXPONENT = 0.8
"""... and the power of its filling with which a less filled one draws less. Both fitted to the Zeus traces (NSDI'23;
V100, P100 and A40 at their highest power limits, without NCF, whose devices wait for the host), by
`python -m benchmarks.power`."""
_FAR = 64.0
"""So many times the largest measured size is as good as infinity for the highest rate of a curve."""
_SHIFT = 1.0
"""How far a new profile may lie from its reference before it is a surprise, standard deviation of the log ..."""
_BEND = 1.0
"""... how far its exponent may be from 1 (of 0.3, 0.5 and 1 the best on the traces) ..."""
_NOISE = 0.05
"""... and how far its points from any such law. All three are ours."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A new profile from a reference: new(x) = e^``shift`` x reference(x)^``exponent``, put right at what was measured.

    What the law leaves of the measured points is joined by straight lines over the logarithm of the size and added.
    """

    shift: float = 0.0
    exponent: float = 1.0
    centre: float = 0.0
    """Logarithm of the reference at which the shift is taken."""
    left: tuple[tuple[float, float], ...] = ()
    """(log size, log of measured over law), ascending."""

    @classmethod
    def fit(cls, sizes: npt.ArrayLike, reference: npt.ArrayLike, measured: npt.ArrayLike) -> Transfer:
        """Fit to a few points: ``measured`` of the new profile and ``reference`` at the same ``sizes``; all positive.

        Ridge regression: one point shifts the reference as a whole, more points bend it as far as they agree. Raises
        ``ValueError`` for points that are not positive and finite, or not as many as the reference's.
        """
        x, r, y = (np.asarray(values, dtype=np.float64) for values in (sizes, reference, measured))
        if r.shape != y.shape or x.shape != y.shape or r.ndim != 1:
            raise ValueError(
                f"{y.size} points need as many sizes and values of the reference, not {x.size} and {r.size}"
            )
        if not all(np.isfinite(values).all() and (values > 0).all() for values in (x, r, y)):
            raise ValueError("a profile's points are positive and finite")
        if not r.size:
            return cls()
        log_r = np.log(r)
        centre = float(log_r.mean())
        u, v = log_r - centre, np.log(y) - log_r
        shift = float(v.sum() / (r.size + (_NOISE / _SHIFT) ** 2))
        bend = float(u @ (v - shift) / (u @ u + (_NOISE / _BEND) ** 2))
        left = dict(zip(np.log(x).tolist(), (v - shift - bend * u).tolist(), strict=True))
        return cls(shift, 1.0 + bend, centre, tuple(sorted(left.items())))

    def __call__(self, sizes: npt.ArrayLike, reference: npt.ArrayLike) -> Array:
        """Return the new profile at ``sizes``, where the reference has these values."""
        log_r = np.log(np.asarray(reference, dtype=np.float64))
        log_y = self.shift + self.centre + self.exponent * (log_r - self.centre)
        if self.left:
            at, left = np.array(self.left).T
            log_y = log_y + np.interp(np.log(np.asarray(sizes, dtype=np.float64)), at, left)
        return np.asarray(np.exp(log_y))


@dataclass(frozen=True, slots=True)
class DevicePower:
    """What is known of a device's draw, in watts; ``measured`` holds (micro-batch, watts while computing)."""

    idle: float
    limit: float
    measured: tuple[tuple[float, float], ...] = ()

    def modelled(self, filling: npt.ArrayLike) -> Array:
        """Return the watts of a device that computes, so well filled (0 to 1), without any measurement."""
        part: Array = PEAK * np.asarray(filling, dtype=np.float64) ** EXPONENT
        return self.idle + (self.limit - self.idle) * part


class Draw:
    """One kind of device in one job: watts while computing, by micro-batch."""

    def __init__(self, power: DevicePower, curve: StepTimeCurve) -> None:
        self._power, self._curve = power, curve
        sizes = np.array([*curve.sizes, curve.sizes[-1] * _FAR])
        self._highest = float((sizes / curve.time(sizes)).max())
        at = np.array([b for b, _ in power.measured])
        self._transfer = Transfer.fit(at, self._model(at), [w for _, w in power.measured]) if at.size else None

    def filling(self, micro_batch: npt.ArrayLike) -> Array:
        """Return how well these sizes fill the device: their rate over the highest, 0 to 1."""
        b = np.asarray(micro_batch, dtype=np.float64)
        return np.minimum(1.0, b / self._curve.time(b) / self._highest)

    def _model(self, micro_batch: npt.ArrayLike) -> Array:
        return np.maximum(1e-3, self._power.modelled(self.filling(micro_batch)))

    def watts(self, micro_batch: npt.ArrayLike) -> Array:
        """Return the watts while computing at these sizes (positive, need not be whole)."""
        model = self._model(micro_batch)
        return model if self._transfer is None else self._transfer(np.maximum(micro_batch, 1e-3), model)


class TeamPower:
    """A group's draw, vectorised; workers are the last axis, in the order of the models."""

    def __init__(self, models: Sequence[WorkerModel], powers: Sequence[DevicePower]) -> None:
        self.idle = np.array([p.idle for p in powers])
        """Watts of each worker while it waits."""
        kinds: dict[tuple[int, DevicePower], list[int]] = {}
        for i, (model, power) in enumerate(zip(models, powers, strict=True)):
            kinds.setdefault((id(model.curve), power), []).append(i)
        self._kinds = [(Draw(power, models[rows[0]].curve), np.array(rows)) for (_, power), rows in kinds.items()]

    def busy(self, shares: npt.ArrayLike, passes: npt.ArrayLike) -> Array:
        """Return the watts of each worker while it computes its share (..., workers) in so many passes."""
        micro = np.asarray(shares, dtype=np.float64) / np.asarray(passes)
        out = np.empty(micro.shape)
        for draw, rows in self._kinds:
            out[..., rows] = draw.watts(micro[..., rows])
        return out

    def joules(self, busy: Array, compute_s: npt.ArrayLike, step_s: npt.ArrayLike) -> Array:
        """Return the joules of steps: each worker's ``busy`` watts while it computes, idle watts for the rest.

        ``compute_s`` is (..., workers), ``step_s`` (...,). What the exchange of gradients draws counts as waiting.
        """
        compute = np.asarray(compute_s, dtype=np.float64)
        waiting = np.maximum(0.0, np.asarray(step_s, dtype=np.float64)[..., None] - compute)
        return np.asarray((compute * busy + waiting * self.idle).sum(axis=-1))
