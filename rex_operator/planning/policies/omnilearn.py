"""OmniLearn: proportional control of the shares at the end of every epoch, with a dead-band and clamps."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from rex_operator.planning.curves import Array
from rex_operator.planning.policies.base import About, Rebalance, Scene
from rex_operator.planning.policies.following import EpochEnd, Following, mean_times, running_shares

DEAD_BAND = 0.2
"""A worker's share changes only if the candidate is this far off, relative to the candidate (published code)."""
LEAST, MOST = 16.0, 96.0
"""Clamps of a share in the published code, for its own models and devices."""


def controlled(shares: Array, times: Array, least: float = LEAST, most: Array | float = MOST) -> Array:
    """Return the next shares by the published rule: ``shares`` took ``times`` seconds.

    Each worker moves by -(b/t)(t - mean t) if that is beyond the dead-band, and is clamped; what the clamps cut off is
    spread evenly over the workers, and an even correction brings the sum back.
    """
    candidate = shares * times.mean() / times
    candidate = np.where(np.abs(candidate - shares) >= DEAD_BAND * candidate, candidate, shares)
    clamped = np.clip(candidate, least, most)
    clamped += (candidate - clamped).sum() / shares.size
    corrected: Array = clamped - (clamped.sum() - shares.sum()) / shares.size
    return corrected


class OmniLearn(Following):
    """Proportional control with throughput gain, synchronous variant."""

    about: ClassVar[About] = About(
        name="omnilearn",
        title="OmniLearn",
        reference="Tyagi, Sharma: OmniLearn, IEEE TPDS 36(6):1253-1267, 2025; arXiv 2503.17469",
        rule=(
            "At each epoch's end b += -(b/t)(t - mean t), where that is beyond a dead-band of 20 %; clamped, the excess"
            " spread evenly, then evenly corrected so that the batch stays."
        ),
        ours=(
            "The published clamps (16 and 96 samples) fit its own devices; here they are the job's least share and the"
            " known memory ceilings. Data without epochs' ends are never balanced, as published."
        ),
        changes=("shares",),
    )

    def __init__(self) -> None:
        super().__init__()
        self._epochs = EpochEnd()

    def rebalance(self, scene: Scene) -> Rebalance | None:
        """Return the controller's next shares when an epoch has ended."""
        plan, times = scene.running, mean_times(self._epochs.passed(scene))
        if times is None or plan is None:
            return None
        ceilings = scene.ceilings()
        most = np.array([np.inf if (cap := ceilings[n]) is None else cap * plan.accumulation for n in scene.names])
        least = min(scene.spec.batch.min_share * plan.accumulation, plan.global_batch / len(scene.names))
        wanted = controlled(running_shares(scene), times, least, np.maximum(most, least))
        return self.move(scene, dict(zip(scene.names, wanted.tolist(), strict=True)), times)
