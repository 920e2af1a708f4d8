"""What well-known devices draw, for jobs whose pools do not say it.

Makers publish the most that a device may draw (its board or thermal power), and seldom what it draws while it waits.
So the largest figures are the makers', and the idle ones are those of a device with a job on it, not of an empty one:
where measurements could be had, they are taken from there (the Zeus traces, NSDI'23, a job that hardly uses its
device); elsewhere they are `IDLE_SHARE` of the largest figure, which is this project's assumption. A pool's own
``power`` comes before anything here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

IDLE_SHARE = 0.15
"""Ours: what V100 and P100 draw waiting, with a job on them, is 14 to 15 % of their limit (Zeus traces)."""


@dataclass(frozen=True, slots=True)
class Published:
    """A kind of device; ``pattern`` is what its name contains as a word, in lower case."""

    pattern: str
    max_watts: float
    source: str
    idle_watts: float | None = None
    """Measured with a job that hardly uses the device; None: `IDLE_SHARE` of ``max_watts``."""

    @property
    def idle(self) -> float:
        """Watts of a device that waits."""
        return IDLE_SHARE * self.max_watts if self.idle_watts is None else self.idle_watts


_ZEUS = "idle: Zeus traces, NCF"

CATALOGUE: tuple[Published, ...] = (
    Published("k80", 150, "half of the board's 300 W: it has two devices; NVIDIA data sheet"),
    Published("p100.*pcie", 250, f"NVIDIA data sheet, PCIe; {_ZEUS}", 34),
    Published("p100", 300, f"NVIDIA data sheet, SXM2; {_ZEUS} (PCIe)", 34),
    Published("v100.*pcie", 250, f"NVIDIA data sheet, PCIe; {_ZEUS}", 38),
    Published("v100", 300, f"NVIDIA data sheet, SXM2; {_ZEUS} (PCIe)", 38),
    Published("t4", 70, "NVIDIA data sheet"),
    Published("(rtx)?[^a-z0-9]?2080[^a-z0-9]?ti", 250, "NVIDIA, reference card"),
    Published("a10", 150, "NVIDIA data sheet"),
    Published("a10g", 300, "limit that the card itself reports"),
    Published("a30", 165, "NVIDIA data sheet"),
    Published("a40", 300, f"NVIDIA data sheet; {_ZEUS}", 85),
    Published("a100.*pcie", 250, "NVIDIA data sheet, PCIe 40 GB (80 GB: 300 W)"),
    Published("a100", 400, "NVIDIA data sheet, SXM4"),
    Published("l4", 72, "NVIDIA data sheet"),
    Published("l40s", 350, "NVIDIA data sheet"),
    Published("h100.*pcie", 350, "NVIDIA data sheet, PCIe"),
    Published("h100", 700, "NVIDIA data sheet, SXM5"),
    Published("h200", 700, "NVIDIA data sheet, SXM"),
)
"""The first that fits counts."""


def _word(pattern: str) -> str:
    return f"(^|[^a-z0-9])({pattern})([^a-z0-9]|$)"


KNOWN = _word("|".join(f"({entry.pattern})" for entry in CATALOGUE))
"""A name in lower case that is in the catalogue; plain enough for the API server's expressions too."""


def published(device: str) -> Published | None:
    """Return what is published of a kind of device, by its name; None for one that is not in the catalogue."""
    name = device.lower()
    return next((entry for entry in CATALOGUE if re.search(_word(entry.pattern), name)), None)
