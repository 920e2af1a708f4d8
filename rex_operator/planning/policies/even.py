"""The baseline that plain data-parallel training is: equal shares, and the batch that the user gave."""

from __future__ import annotations

from typing import ClassVar

from rex_operator.planning.policies.base import About, Base, Scene
from rex_operator.planning.split import even_split


class Even(Base):
    """Equal shares within the memory ceilings; never another batch."""

    about: ClassVar[About] = About(
        name="even",
        title="Even split",
        reference="PyTorch DistributedDataParallel: Li et al., PVLDB 13(12), 2020",
        rule="Every worker gets the same share of the batch that the user gave.",
        ours="Shares are cut to known memory ceilings, where DDP would run out of memory.",
    )

    def shares(self, scene: Scene, batch: int, accumulation: int) -> dict[str, int]:
        """Return equal shares. Raises ``CannotPlan``."""
        return even_split(scene.ceilings(), batch, accumulation, scene.spec.batch.min_share)
