"""What REX says about a job: the ``status`` of a RexJob.

The API server silently drops a field that the schema does not declare, and a status that grows with the length of a run
ends in a refused write. So each field is declared here, each list and string is bounded, and ``JobStatus`` is the only
thing that the controller ever writes. Numbers that people read in ``kubectl get`` are rounded where they are set.

``phase`` is derived for printing; programs should read ``conditions``, which have the shape of ``metav1.Condition``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, ValidationError, WithJsonSchema

from rex_operator.api.spec import MAX_BATCH, MAX_POOLS, MAX_WORKERS, ApiModel, DnsLabel

Phase = Literal["Pending", "Starting", "Running", "Suspended", "Succeeded", "Failed"]
TERMINAL: frozenset[str] = frozenset({"Succeeded", "Failed"})

ConditionType = Literal["Validated", "Scheduled", "Running", "PlanApplied", "Suspended", "Succeeded", "Failed"]

MAX_FAILURES = 32
MAX_DECISIONS = 10
MAX_UNACKED = 16

Time = Annotated[
    datetime,
    PlainSerializer(lambda time: time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""Written in whole seconds, as all of Kubernetes does."""

Count = Annotated[int, Field(ge=0, le=2**53)]
Reason = Annotated[str, Field(max_length=128, pattern=r"^([A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?)?$")]
Message = Annotated[str, Field(max_length=2048)]
Short = Annotated[str, Field(max_length=64)]
MAX_NUMBER = 1e15
"""The API server compares a whole number with bounds cut to 64 bits, so a larger bound would refuse everything."""

Rate = Annotated[float, Field(ge=0, le=MAX_NUMBER)]
MAX_GAIN = 1e9
Gain = Annotated[float, Field(ge=-MAX_GAIN, le=MAX_GAIN)]


class Condition(ApiModel):
    """One observation about the job, in the shape of ``metav1.Condition``."""

    type: ConditionType
    status: Literal["True", "False", "Unknown"]
    reason: Reason
    message: Message = ""
    observed_generation: Count = 0
    last_transition_time: Time


class WorkerCounts(ApiModel):
    """How many workers there should be and how many train."""

    desired: Annotated[int, Field(ge=0, le=MAX_WORKERS)] = 0
    ready: Annotated[int, Field(ge=0, le=MAX_WORKERS)] = 0
    """Connected and ready to train, or training."""
    summary: Short = "0/0"
    """ready/desired, for printing."""


class PoolStatus(ApiModel):
    """The workers of one pool."""

    name: DnsLabel
    device: Annotated[str, Field(max_length=128)] = ""
    desired: Annotated[int, Field(ge=0, le=MAX_WORKERS)] = 0
    ready: Annotated[int, Field(ge=0, le=MAX_WORKERS)] = 0


class PlanStatus(ApiModel):
    """The plan that the workers run, and the one on its way to them."""

    version: Count = 0
    generation: Count = 0
    global_batch: Annotated[int, Field(ge=0, le=MAX_BATCH)] = 0
    accumulation: Annotated[int, Field(ge=1, le=1024)] = 1
    """Passes per step that a worker takes at most."""
    learning_rate_factor: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    state: Literal["Applied", "Pending"] = "Applied"
    unacked: Annotated[list[DnsLabel], Field(max_length=MAX_UNACKED, default_factory=list)]
    """Workers that have not yet said that they run this plan (the first of them, when many)."""
    stale: Annotated[list[DnsLabel], Field(max_length=MAX_UNACKED, default_factory=list)]
    """Workers that report nothing."""


class Progress(ApiModel):
    """How far the training is."""

    step: Count = 0
    samples: Count = 0
    steps_lost: Count = 0
    """Applied steps whose effect was lost, over the job's life. A planned change loses none; a lost worker costs the
    step in flight, which nobody has applied; the loss of all workers, those since the last checkpoint."""
    percent: Annotated[int | None, Field(ge=0, le=100)] = None
    summary: Short = ""
    """Percentage when the length of the run is known, else the step; for printing."""
    steps_per_second: Rate = 0.0
    samples_per_second: Rate = 0.0
    goodput: Rate = 0.0
    loss: Annotated[float | None, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)] = None
    eta_seconds: Count | None = None
    eta: Short = ""


class Spending(ApiModel):
    """What the job costs as it runs now; absent what is not known."""

    price_per_hour: Rate | None = None
    """Of the present workers, in the currency of ``pools[].pricePerHour``."""
    price_per_million_samples: Rate | None = None
    """Of useful samples, at the present rate."""
    watts: Rate | None = None
    """Modelled draw of all devices; no meter is read."""
    joules_per_sample: Rate | None = None
    """Modelled, per useful sample."""
    advice: Annotated[str, Field(max_length=512)] = ""
    """Which workers do not pay for themselves, where ``planner.objective`` is ``cost`` or ``energy``. Nothing is done
    about it: set the pools' ``maxWorkers``."""


class Restarts(ApiModel):
    """Replaced workers: what counts towards ``failure.maxRestarts``, and what does not."""

    charged: Count = 0
    uncharged: Count = 0


class WorkerFailure(ApiModel):
    """One end of a worker's life that was not planned, and how it was charged."""

    worker: DnsLabel
    pod: Annotated[str, Field(max_length=253)]
    uid: Annotated[str, Field(max_length=64)]
    node: Annotated[str, Field(max_length=253)] = ""
    reason: Reason
    exit_code: Annotated[int | None, Field(ge=-1, le=255)] = None
    message: Annotated[str, Field(max_length=512)] = ""
    charged: bool
    time: Time


class Decision(ApiModel):
    """One decision of the planner with its evidence, shortened; ``rex explain`` tells all of it."""

    step: Count = 0
    kind: Short
    batch_from: Count | None = None
    batch_to: Count | None = None
    expected: Gain | None = None
    """Relative gain that was predicted beforehand (0.05 = 5 %)."""
    effect: Gain | None = None
    """Relative gain that was measured, with its 95 % interval."""
    effect_low: Gain | None = None
    effect_high: Gain | None = None
    p_value: Annotated[float | None, Field(ge=0, le=1)] = None
    """The smaller of the one-sided p-values, better and worse."""
    level: Annotated[float | None, Field(ge=0, le=1)] = None
    """That the p-value had to reach."""
    trial_seconds: Rate | None = None
    """What the trial that this ends has taken, all in all."""
    samples_won: Annotated[float | None, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)] = None
    """Useful samples that it won (negative: lost) against going on as before."""
    reason: Annotated[str, Field(max_length=512)] = ""


class JobStatus(ApiModel):
    """The whole status; the controller writes it by server-side apply under its own field manager."""

    phase: Phase = "Pending"
    reason: Reason = ""
    message: Message = ""
    observed_generation: Count = 0
    conditions: Annotated[
        list[Condition],
        Field(
            default_factory=list,
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ]
    workers: WorkerCounts = WorkerCounts()
    pools: Annotated[
        list[PoolStatus],
        Field(
            default_factory=list,
            max_length=MAX_POOLS,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ]
    pools_summary: Annotated[str, Field(max_length=1280)] = ""
    replicas: Annotated[int, Field(ge=0, le=MAX_WORKERS)] = 0
    """Live workers, for the scale subresource."""
    selector: Annotated[str, Field(max_length=253)] = ""
    """Selects just this job's worker pods, for the scale subresource."""
    generation: Count = 0
    """The running membership; not to be confused with ``observedGeneration``."""
    plan: PlanStatus | None = None
    progress: Progress | None = None
    spending: Spending | None = None
    restarts: Restarts = Restarts()
    failures: Annotated[list[WorkerFailure], Field(max_length=MAX_FAILURES, default_factory=list)]
    decisions: Annotated[list[Decision], Field(max_length=MAX_DECISIONS, default_factory=list)]
    start_time: Time | None = None
    """When the job first trained; ``activeDeadlineSeconds`` counts from here."""
    completion_time: Time | None = None

    def condition(self, kind: ConditionType) -> Condition | None:
        """The condition of that type, if it was ever set."""
        return next((c for c in self.conditions if c.type == kind), None)

    @property
    def finished(self) -> bool:
        """Whether the job has ended for good."""
        return self.phase in TERMINAL

    @classmethod
    def read(cls, status: Any) -> JobStatus:
        """Read what the API server holds, field by field: what another version wrote differently counts as absent."""
        kept = {}
        for name, field in cls.model_fields.items():
            alias = field.alias or name
            if alias in (status or {}):
                try:
                    kept[name] = getattr(cls.model_validate({alias: status[alias]}), name)
                except ValidationError:
                    continue
        return cls.model_validate(kept)

    def dump(self) -> dict[str, Any]:
        """The JSON to write: camelCase, without what is unset."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
