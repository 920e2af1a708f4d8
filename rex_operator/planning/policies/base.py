"""What a planning policy decides, and what it gets to see.

The state machine around it (windows, trials, verdicts, records) is the same for all policies, so that they can be
compared with each other: a policy only says how a batch is shared, when other shares are worth a change, and which
batch is worth a trial.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from rex_operator.api.spec import RexJobSpec
from rex_operator.planning.cooldown import Cooldown
from rex_operator.planning.devices import Devices
from rex_operator.planning.search import Measured, SearchRequest
from rex_operator.planning.types import PlanDraft, WorkerInfo


@dataclass(frozen=True, slots=True)
class Scene:
    """All that is known at a moment; policies read it and change nothing."""

    spec: RexJobSpec
    workers: tuple[WorkerInfo, ...]
    devices: Devices
    cooldown: Cooldown
    at: float
    """Job time in seconds."""
    running: PlanDraft | None = None
    overhead_s: float = 0.0
    """Median seconds per step beside the slowest worker's compute."""
    error: float = 0.0
    """Standard error of the logarithm of a worker's median compute time in the present window."""
    noise_scale: float | None = None
    measured: tuple[Measured, ...] = ()


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Other shares of the same batch, with the predicted effect."""

    shares: Mapping[str, int]
    gain: float
    """Predicted relative gain of throughput."""
    slowest: str
    """The worker that all wait for now."""
    spread_before: float
    """Largest over smallest compute time now."""
    spread_after: float
    """... and as predicted."""


class Policy(Protocol):
    """How one kind of planner shares batches and finds new ones."""

    name: ClassVar[str]

    def shares(self, scene: Scene, batch: int, accumulation: int) -> dict[str, int]:
        """Return the samples per worker and step; they sum to ``batch``. Raises ``CannotPlan``."""
        ...

    def rebalance(self, scene: Scene, threshold: float) -> Rebalance | None:
        """Return better shares of the running batch, if they promise at least ``threshold`` (relative gain)."""
        ...

    def search(self, scene: Scene, number: int) -> SearchRequest | None:
        """Return the search for the next trial; None while there is nothing to search with."""
        ...
