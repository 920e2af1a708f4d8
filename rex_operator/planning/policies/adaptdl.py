"""AdaptDL's rule for one job: once per pass over the data the batch with the best predicted goodput, shared evenly.

What a step costs at any batch is told by Pollux's model of seven numbers, fitted to all that was ever measured; what a
sample is worth there, by the noise scale. The best of 50 batches is taken without a trial, if its predicted goodput is
more than 1.05 times that of the running one. The rule knows neither noise nor unlike devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rex_operator.planning.noise import efficiency
from rex_operator.planning.policies.base import About, Adoption, Base, Scene
from rex_operator.planning.pollux_throughput import Array, Configuration, Throughput, fit
from rex_operator.planning.split import even_split
from rex_operator.planning.windows import GroupStep

THRESHOLD = 1.05
"""Predicted goodput over that of the running batch, above which the batch changes."""
CANDIDATES = 50
"""Batches considered, geometrically spaced."""
_MOST_CONFIGURATIONS = 256
"""Kept at most; the original keeps all."""
_EPS = 1e-8


@dataclass(slots=True)
class _Sums:
    """Running sums of one configuration; they never age, so a device that became slower is believed slowly."""

    accum_s: float = 0.0
    optim_s: float = 0.0
    steps: int = 0


class Profile:
    """Step times by (replicas, samples per pass); all that was ever measured counts alike.

    The planner does not know which workers share a node, so that each counts as a node of its own, which is also what
    AdaptDL assumes unless told otherwise.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[int, float], _Sums] = {}
        self._last = -1

    def take(self, scene: Scene) -> None:
        """Add the steps that are new; the first of each pass over the data is left out."""
        if scene.running is None:
            return
        passes, replicas = scene.running.accumulation, len(scene.names)
        place = (replicas, scene.running.global_batch / (replicas * passes)) if replicas else None
        for step in self._new(scene.steps):
            compute = float(step.compute_s.max())
            accum = compute / passes
            optim = step.step_s - (passes - 1) * accum
            if place is None or not (0 < accum < math.inf and 0 < optim < math.inf):
                continue
            sums = self._sums.pop(place, None) or _Sums()
            sums.accum_s, sums.optim_s, sums.steps = sums.accum_s + accum, sums.optim_s + optim, sums.steps + 1
            self._sums[place] = sums
        while len(self._sums) > _MOST_CONFIGURATIONS:
            del self._sums[next(iter(self._sums))]

    def _new(self, steps: Sequence[GroupStep]) -> list[GroupStep]:
        if not steps:
            return []
        last, self._last = self._last, steps[-1].step
        if self._last < last:  # the job went back to a checkpoint
            last = -1
        begin = len(steps)
        while begin > 0 and steps[begin - 1].step > last:
            begin -= 1
        return [steps[i] for i in range(begin, len(steps)) if i == 0 or steps[i].epoch == steps[i - 1].epoch]

    def configurations(self) -> list[Configuration]:
        """Return the means, as the model is fitted to them."""
        return [
            Configuration(replicas, replicas, size, s.accum_s / s.steps, s.optim_s / s.steps)
            for (replicas, size), s in self._sums.items()
        ]


class Passes:
    """Tells when a pass over the data begins, or the group starts over with another number of replicas."""

    def __init__(self) -> None:
        self._now: tuple[int, int] | None = None

    def begins(self, scene: Scene) -> bool:
        """Return whether one has begun since the last call; the first call only notes where the job stands."""
        before, self._now = self._now, (scene.epoch, len(scene.workers))
        return before is not None and before != self._now


def candidates(initial: int, most: int, replicas: int, ceiling: int, least: int = 1) -> tuple[Array, Array]:
    """Return the samples per pass and replica, and the passes, of the batches to consider; whole numbers.

    Batches go from ``initial`` to ``most``; a replica holds ``least`` to ``ceiling`` samples in a pass. A lone replica
    needs two passes beyond ``initial``, lest it cannot measure the noise scale. Empty if nothing fits.
    """
    low = max(initial, least * replicas)
    if low > most or ceiling < least:
        return np.zeros(0), np.zeros(0)
    local = np.geomspace(low, most, CANDIDATES) / replicas
    passes = np.maximum(np.ceil(local / ceiling - _EPS), 1)
    if replicas == 1:
        passes = np.where(local > initial + _EPS, np.maximum(passes, 2), passes)
    micro = np.clip(np.ceil(local / passes - _EPS), least, ceiling)
    allowed = micro * passes * replicas <= most
    return micro[allowed], passes[allowed]


def goodput(model: Throughput, replicas: int, micro: Array, passes: Array, noise_scale: float, initial: int) -> Array:
    """Return useful samples per second: throughput times (phi + m0) / (phi + M)."""
    batch = replicas * micro * passes
    seconds = model.iteration_s(replicas, replicas, micro, passes)
    useful = [efficiency(noise_scale, float(size), initial) for size in np.ravel(batch)]
    return np.asarray(batch / seconds * np.reshape(useful, batch.shape))


class AdaptDL(Base):
    """Even shares; at the start of a pass the batch of best goodput, if it is better by more than 5 %."""

    about: ClassVar[About] = About(
        name="adaptdl",
        title="AdaptDL (Pollux)",
        reference="Qiao et al.: Pollux, OSDI 2021",
        rule=(
            "Equal shares; at the start of each pass over the data the batch and accumulation with the best goodput by"
            " a fitted model of seven numbers, if predicted to be more than 1.05 times the present one."
        ),
        ours=(
            "The noise scale is REX's pooled estimate. The model is fitted to the slowest worker's times, each worker"
            " counts as a node, and memory bounds are learned instead of given. Steps of the warm-up are not profiled."
            " Goodput is the only objective."
        ),
        changes=("batch",),
    )

    def __init__(self) -> None:
        self._profile = Profile()
        self._passes = Passes()

    def shares(self, scene: Scene, batch: int, accumulation: int) -> dict[str, int]:
        """Return equal shares. Raises ``CannotPlan``."""
        return even_split(scene.ceilings(), batch, accumulation, scene.spec.batch.min_share)

    def adopt(self, scene: Scene) -> Adoption | None:
        """Return the best batch, when a pass begins and it passes the threshold."""
        self._profile.take(scene)
        if not self._passes.begins(scene):
            return None
        seen, plan, phi = self._profile.configurations(), scene.running, scene.noise_scale
        if not seen or plan is None or phi is None:
            return None
        bounds, replicas = scene.spec.batch, len(scene.workers)
        ceiling = min([bounds.max, *(c for c in scene.ceilings().values() if c is not None)])
        micro, passes = candidates(bounds.initial, bounds.max, replicas, ceiling, bounds.min_share)
        if not micro.size:
            return None
        model = fit(seen)
        now = goodput(
            model,
            replicas,
            np.array(plan.global_batch / (replicas * plan.accumulation)),
            np.array(float(plan.accumulation)),
            phi,
            bounds.initial,
        )
        expected = goodput(model, replicas, micro, passes, phi, bounds.initial)
        best = int(np.argmax(expected))
        possible = plan.global_batch <= ceiling * plan.accumulation * replicas  # with equal shares
        ratio = float(expected[best]) / max(float(now) if possible else 0.0, _EPS)
        if not ratio > THRESHOLD:
            return None
        batch = round(micro[best] * passes[best]) * replicas
        scale = f"noise scale {phi:.3g} samples"
        if not possible:
            why = (
                f"A pass begins: no equal shares of batch {plan.global_batch} fit in memory; {batch} is best ({scale})."
            )
            return Adoption(batch, int(passes[best]), why)
        why = f"A pass begins: batch {batch} promises {ratio:.2f} times the goodput of {plan.global_batch} ({scale})."
        return Adoption(batch, int(passes[best]), why, ratio - 1)
