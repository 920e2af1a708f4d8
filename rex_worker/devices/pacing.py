"""Pace this process like another device. Switched on by ``REX_EMULATE=1`` only.

The real computation runs; then the process sleeps until the emulated device would be done. Gradients leave only
after that, or a fast peer would receive them before the emulated device has them.
"""

from __future__ import annotations

import time

import torch

from rex_worker.devices.profiles import Profile


class Pacer:
    """Emulates one device; ``scale`` multiplies its times."""

    def __init__(self, profile: Profile, scale: float = 1.0) -> None:
        self._profile = profile
        self._scale = scale

    def check_memory(self, samples: int) -> None:
        """Raise torch's own out-of-memory error when the micro-batch would not fit."""
        limit = self._profile.max_micro_batch
        if samples > limit:
            raise torch.OutOfMemoryError(
                f"emulated {self._profile.name} out of memory: a micro-batch of {samples} samples, {limit} fit"
            )

    def pace(self, samples: int, started: float) -> None:
        """Sleep until the pass over ``samples``, begun at ``started`` (``time.perf_counter``), would be done."""
        left = started + self._profile.seconds(samples) * self._scale - time.perf_counter()
        if left > 0:
            time.sleep(left)
