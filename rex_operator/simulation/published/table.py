"""Step time by local batch, whoever published it.

Each source has its own columns, names of devices and quirks. What a curve, a test or a simulated device needs is the
same from all of them: how long a step takes with so many samples per GPU, and how much of it is communication.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One measured batch."""

    local_batch: int
    """Samples per GPU and step."""
    step_s: float
    """Seconds per optimiser step, communication included."""
    sync_s: float
    """Seconds of it that the GPU waits for communication; 0 where the source does not tell."""


@dataclass(frozen=True, slots=True)
class Table:
    """The measured batches of one model on one placement of equal devices."""

    source: str
    """Publication and file, for example ``sia/placements-azure``."""
    model: str
    device: str
    """In plain names: t4, 2080ti, rtx6000, v100, a100, k80, p100."""
    nodes: int
    replicas: int
    placement: str
    """As the source writes it; Sia and Pollux: GPUs on each node, a digit a node."""
    rows: tuple[Row, ...]
    """Ascending in ``local_batch``, each once."""
    too_large: tuple[int, ...] = ()
    """Local batches that the source reports as not fitting."""
