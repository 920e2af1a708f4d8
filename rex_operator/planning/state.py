"""What a planner has learned, for the next life of the operator."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rex_operator.planning.budget import BudgetState
from rex_operator.planning.communication import MAX_KEPT as MAX_EXCHANGES
from rex_operator.planning.communication import KeptExchange
from rex_operator.planning.cooldown import Direction, PauseState
from rex_operator.planning.devices import DevicesState
from rex_operator.planning.history import MAX_KEPT, KeptMeasure
from rex_operator.planning.noise import NoiseState
from rex_operator.planning.types import MAX_DECISIONS, DecisionRecord, Record


class PlannerState(Record):
    """Bounded and JSON. A half-done trial is not in it: it starts over."""

    elapsed_s: float
    """Job time: seconds of planning over all lives; the times within the state are on this clock."""
    global_batch: int
    accumulation: int
    trials: int = 0
    searches: int = 0
    """Number of the last search, so that an answer to an earlier planner is not taken for one to this."""
    converged: bool = False
    budget: BudgetState = BudgetState()
    noise: NoiseState = NoiseState()
    rate_noise: float | None = None
    """The noise scale that the learning rate goes by."""
    adaptive: bool = False
    """The script's optimiser divides by the gradient's own size."""
    equal_passes: bool = False
    """All workers of the script must run equally many passes."""
    devices: DevicesState = DevicesState()
    history: Annotated[tuple[KeptMeasure, ...], Field(max_length=MAX_KEPT)] = ()
    exchanges: Annotated[tuple[KeptExchange, ...], Field(max_length=MAX_EXCHANGES)] = ()
    pauses: dict[Direction, PauseState] = Field(default_factory=dict)
    decisions: Annotated[tuple[DecisionRecord, ...], Field(max_length=MAX_DECISIONS)] = ()
