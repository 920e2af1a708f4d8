"""What outlives the operator: enough to go on where the last one stopped, and small enough for one ConfigMap.

A restarted operator must neither disturb the workers, which train on without it, nor count backwards. So it keeps who
formed the last generation, under which plan, and what the planner has learned; the rest is told by the workers when
they reconnect.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from rex_operator.planning import PlannerState
from rex_worker.protocol import MAX_WORKERS, Count, Incarnation, Plan, Port, WorkerId

MAX_SAVED_BYTES = 900_000
"""A saved state is shorter than this as JSON: a ConfigMap holds 1 MiB."""


class SavedMember(BaseModel):
    """One member of the last generation, in rank order."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    worker_id: WorkerId
    incarnation: Incarnation
    address: Annotated[str, Field(min_length=1, max_length=253)]
    store_port: Port
    pool: Annotated[str, Field(max_length=63)]
    device: Annotated[str, Field(max_length=128)]
    max_local_batch: Annotated[int | None, Field(ge=1)] = None
    memory_bytes: Count = 0


class SavedState(BaseModel):
    """The memory of one job's coordinator. Fields that a newer build added are ignored by an older one."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    generation: Count = 0
    plan_version: Count = 0
    members: Annotated[list[SavedMember], Field(max_length=MAX_WORKERS)] = []
    plan: Plan | None = None
    checkpoint_step: Count = 0
    """Newest committed checkpoint: training that starts over below it would be a silent loss."""
    final_checkpoint: bool = False
    step: Count = 0
    samples: Count = 0
    total_samples: Count = 0
    steps_lost: Count = 0
    planner: PlannerState | None = None

    def alone(self) -> SavedState:
        """The same when nobody of the earlier part goes on: numbers, checkpoint and what was learned count."""
        return self.model_copy(update={"members": [], "plan": None})
