"""How long emulated devices take: a stand-in for a mixed GPU pool on a machine that has none.

A pass over b samples takes ``floor_s + per_sample_s * h(b)``, where h is zero while the device is not yet filled and
then grows by one per sample, with a soft knee between (the shape that the public single-GPU curves of the Sia traces
have). The numbers keep the rough order of the real devices and are small, so that a whole run fits into minutes;
they are not measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rex_worker.errors import ConfigurationError


@dataclass(frozen=True)
class Profile:
    """Pace and memory of a device kind."""

    name: str
    floor_s: float
    per_sample_s: float
    knee: float
    """Samples that fill the device."""
    max_micro_batch: int
    """A larger micro-batch does not fit into memory."""

    def seconds(self, samples: int) -> float:
        """Duration of forward and backward over one micro-batch."""
        beyond = samples - self.knee
        return self.floor_s + self.per_sample_s * (math.hypot(beyond, self.knee) + beyond) / 2


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("h100", floor_s=0.0045, per_sample_s=0.00015, knee=48, max_micro_batch=1536),
        Profile("a100", floor_s=0.0055, per_sample_s=0.00030, knee=24, max_micro_batch=768),
        Profile("v100", floor_s=0.0065, per_sample_s=0.00058, knee=12, max_micro_batch=384),
        Profile("rtx2080ti", floor_s=0.0070, per_sample_s=0.00085, knee=8, max_micro_batch=256),
        Profile("t4", floor_s=0.0090, per_sample_s=0.00145, knee=4, max_micro_batch=192),
    )
}


def profile_of(device: str) -> Profile:
    """The profile of a device kind. Raises ``ConfigurationError`` that lists what there is."""
    try:
        return PROFILES[device]
    except KeyError:
        raise ConfigurationError(
            f"REX_EMULATE: there is no profile of a device {device!r}; known are {', '.join(sorted(PROFILES))}"
        ) from None
