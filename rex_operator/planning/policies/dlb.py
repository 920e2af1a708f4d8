"""DLB / DBS: at the end of every epoch, shares in proportion to measured speed."""

from __future__ import annotations

from typing import ClassVar

from rex_operator.planning.policies.base import About, Rebalance, Scene
from rex_operator.planning.policies.following import EpochEnd, Following, mean_times, running_shares


class Dlb(Following):
    """Dynamic load balancing by samples per second."""

    about: ClassVar[About] = About(
        name="dlb",
        title="DLB (DBS)",
        reference=(
            "Ye et al.: DLB, IEEE Transactions on Emerging Topics in Computational Intelligence, 2022, doi"
            " 10.1109/TETCI.2022.3220224; preprint DBS, arXiv 2007.11831"
        ),
        rule="At each epoch's end every worker's share becomes proportional to its samples per second in that epoch.",
        ours=(
            "Ceilings and least shares bound the result. Data without epochs' ends are never balanced, as published."
        ),
        changes=("shares",),
    )

    def __init__(self) -> None:
        super().__init__()
        self._epochs = EpochEnd()

    def rebalance(self, scene: Scene) -> Rebalance | None:
        """Return shares proportional to speed when an epoch has ended."""
        times = mean_times(self._epochs.passed(scene))
        if times is None or scene.running is None:
            return None
        speeds = running_shares(scene) / times
        wanted = scene.running.global_batch * speeds / speeds.sum()
        return self.move(scene, dict(zip(scene.names, wanted.tolist(), strict=True)), times)
