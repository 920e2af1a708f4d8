"""The baseline that plain data-parallel training is: equal shares, and the batch that the user gave."""

from __future__ import annotations

from typing import ClassVar

from rex_operator.planning.policies.base import Rebalance, Scene
from rex_operator.planning.search import SearchRequest
from rex_operator.planning.split import even_split


class Even:
    """Equal shares within the memory ceilings; never another batch."""

    name: ClassVar[str] = "even"

    def shares(self, scene: Scene, batch: int, accumulation: int) -> dict[str, int]:
        """Return equal shares. Raises ``CannotPlan``."""
        ceilings = {w.worker_id: scene.devices.ceiling(w) for w in scene.workers}
        return even_split(ceilings, batch, accumulation, scene.spec.batch.min_share)

    def rebalance(self, scene: Scene, threshold: float) -> Rebalance | None:
        """Return None: equal is equal."""
        return None

    def search(self, scene: Scene, number: int) -> SearchRequest | None:
        """Return None: the batch is the user's."""
        return None
