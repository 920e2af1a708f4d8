"""The messages of the worker channel.

The operator and a worker may be of different builds, one of them may be restarted at any moment, and anything that
reaches the operator may be hostile. So every message is a small closed pydantic model in JSON: bounded in each
string, list and number, without NaN or infinity, and stamped with the generation, plan version and step that it
speaks of, so that a repeat, a delay or another life changes nothing.

This module imports neither torch nor the operator; it is the only one that both sides share.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 64 * 1024
"""A message to the operator, as UTF-8 JSON, is shorter than this; a longer one ends the connection."""
MAX_DOWN_BYTES = 2**20
"""A message to a worker is shorter than this: a Membership of ``MAX_WORKERS`` with the longest names fits."""

EXIT_OUT_OF_MEMORY = 117
"""Exit code of a worker whose script could not go on because the device's memory was full, of which it has told."""

MAX_WORKERS = 1024
MAX_SAMPLES = 2**53
"""Largest count of samples or steps: exact in a double, as JSON readers elsewhere need it."""

SyncMode = Literal["bsp"]

WorkerId = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
Incarnation = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9-]+$")]
Text = Annotated[str, Field(max_length=2048)]
Count = Annotated[int, Field(ge=0, le=MAX_SAMPLES)]
Positive = Annotated[int, Field(ge=1, le=MAX_SAMPLES)]
Seconds = Annotated[float, Field(ge=0, le=1e7)]
Port = Annotated[int, Field(ge=1, le=65535)]
Passes = Annotated[int, Field(ge=1, le=1024)]


class Message(BaseModel):
    """What all messages have in common: closed, frozen, and free of NaN and infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class DownMessage(Message):
    """A message from operator to worker; a worker older than the operator ignores the fields it does not know."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)


# --- down: operator -> worker ---------------------------------------------------------------------------------------


class Plan(DownMessage):
    """How the group runs a step. Versions only grow over the life of a job, across generations and operators."""

    kind: Literal["Plan"] = "Plan"
    generation: Count
    version: Positive
    global_batch: Positive
    accumulation: Passes = 1
    """Passes per optimiser step that a worker takes at most."""
    local_batches: Annotated[dict[WorkerId, Positive], Field(min_length=1, max_length=MAX_WORKERS)]
    """Samples per worker and optimiser step, over all of its passes; they sum to ``global_batch``."""
    passes: Annotated[dict[WorkerId, Passes], Field(max_length=MAX_WORKERS)] = {}
    """Passes of each worker that takes fewer than ``accumulation``."""
    learning_rate_factor: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """The worker's rate is base rate x this, set anew each step: repeated changes never compound."""
    warmup_samples: Count = 0
    """Samples of the job over which the rate climbs from 0 to its full height; 0: it is there from the start."""
    initial_batch: Count = 0
    """The batch that base rate and schedules are meant for; 0: this plan's own."""
    sync_mode: SyncMode = "bsp"

    @model_validator(mode="after")
    def _sums(self) -> Plan:
        total = sum(self.local_batches.values())
        if total != self.global_batch:
            raise ValueError(f"local batches sum to {total}, global batch is {self.global_batch}")
        for worker_id, passes in self.passes.items():
            if worker_id not in self.local_batches or passes > self.accumulation:
                raise ValueError(f"{passes} passes of {worker_id}: not a worker of the plan, or more than accumulation")
        return self

    def passes_of(self, worker_id: str) -> int:
        """Return in how many passes a worker takes its share."""
        return self.passes.get(worker_id, self.accumulation)


class Member(DownMessage):
    """One worker of a generation; its rank is its place in ``Membership.members``."""

    worker_id: WorkerId
    incarnation: Incarnation
    address: Annotated[str, Field(min_length=1, max_length=253)]
    store_port: Port
    """Each worker keeps a rendezvous store open for its whole life; rank 0's is used by the generation."""


class Membership(DownMessage):
    """One agreed group of workers. The generation only grows; ``plan`` is the plan that the generation starts under.

    A member of the running generation switches at the first step boundary at which all of its group have received this
    message; a worker without a group joins at once. State comes from the member with the most applied steps.
    """

    kind: Literal["Membership"] = "Membership"
    generation: Positive
    members: Annotated[list[Member], Field(min_length=1, max_length=MAX_WORKERS)]
    plan: Plan
    collective_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    min_step: Count = 0
    """A checkpoint or a live member with at least this step must be found; else it is an error (no silent restart)."""

    @model_validator(mode="after")
    def _agrees(self) -> Membership:
        ids = [m.worker_id for m in self.members]
        if len(set(ids)) != len(ids):
            raise ValueError("a worker is listed twice")
        if set(ids) != set(self.plan.local_batches):
            raise ValueError("plan and members name different workers")
        if self.plan.generation != self.generation:
            raise ValueError("plan is of another generation")
        return self


class Drain(DownMessage):
    """Leave the group at the next boundary: a Membership without you follows or is already there."""

    kind: Literal["Drain"] = "Drain"
    reason: Text = ""


class Stop(DownMessage):
    """End the training: save a checkpoint at the next boundary if ``checkpoint``, then say Left and exit."""

    kind: Literal["Stop"] = "Stop"
    reason: Text = ""
    checkpoint: bool = True


# --- up: worker -> operator -----------------------------------------------------------------------------------------


class Hello(Message):
    """First message on each connection. The token travels in the HTTP header, never here."""

    kind: Literal["Hello"] = "Hello"
    protocol: Annotated[int, Field(ge=1, le=1000)] = PROTOCOL_VERSION
    job: Annotated[str, Field(min_length=1, max_length=317)]
    worker_id: WorkerId
    incarnation: Incarnation
    device: Annotated[str, Field(max_length=128)]
    """Kind of the device, for example ``a100``; workers of one kind share a curve."""
    device_memory_bytes: Count = 0
    address: Annotated[str, Field(min_length=1, max_length=253)]
    store_port: Port
    generation: Count = 0
    """Where this process stands, so that a restarted operator learns it: 0 = in no group."""
    plan_version: Count = 0
    step: Count = 0
    exits: Annotated[list[Annotated[int, Field(ge=1, le=255)]], Field(max_length=16)] = []
    """Exit codes of this worker's earlier processes in the same pod, oldest first; nobody else could tell of them."""


class Ready(Message):
    """Model and data are built: the worker can join a generation."""

    kind: Literal["Ready"] = "Ready"
    step: Count = 0
    dataset_size: Count = 0
    """Samples of an epoch, 0 when not known: a stream may not tell its length."""
    total_samples: Count = 0
    """Samples of the whole run, 0 when not known; progress is samples / total_samples."""
    adaptive: bool = False
    """The optimiser divides by the gradient's own size (Adam and its kin), so that other rules suit its rate."""
    equal_passes: bool = False
    """All workers must run equally many passes per step: the parts of a sharded model are gathered in each."""


Mark = Literal["first", "checkpoint", "evaluation", "after-change"]


class StepReport(Message):
    """One optimiser step as one worker saw it. Times are this worker's own monotonic durations."""

    step: Positive
    """Number of the applied optimiser step, from 1; the same on all workers."""
    plan_version: Positive
    samples: Count
    """Samples applied by the whole group up to and including this step: the clock of the job."""
    epoch: Count = 0
    local_batch: Count
    compute_s: Seconds
    """Forward and backward, emulated pacing included; neither waiting for others nor for data."""
    wait_s: Seconds
    """Waiting for the others, after this worker's own backward was done; where ``comm_s`` is None, that as well."""
    comm_s: Seconds | None = None
    """From the end of the last worker's backward to the sum of all gradients; None in a generation's first step."""
    data_s: Seconds = 0.0
    step_s: Seconds
    """From the end of the last step to the end of this one."""
    loss: Annotated[float | None, Field(ge=-1e30, le=1e30)] = None
    """Mean loss of this worker's samples; None when not finite (see ``diverged``) or when it had none."""
    diverged: bool = False
    local_grad_sq: Annotated[float | None, Field(ge=0, le=1e300)] = None
    """|g_i|^2 of this worker's own mean gradient, before averaging and clipping."""
    global_grad_sq: Annotated[float | None, Field(ge=0, le=1e300)] = None
    """|g|^2 of the averaged gradient; the same on all workers."""
    first_pass: Count = 0
    """Samples of the step's first pass, where ``first_pass_sq`` is told."""
    first_pass_sq: Annotated[float | None, Field(ge=0, le=1e300)] = None
    """|g_1|^2 of the first pass's own mean gradient; told by a worker that is alone and runs several passes a step."""
    peak_bytes: Count = 0
    """Most memory of the device in use at once during the step; 0 where that is not known (CPU)."""
    marks: Annotated[list[Mark], Field(max_length=4)] = []


class Steps(Message):
    """Some steps of one worker, batched; each is idempotent by (incarnation, plan version, step)."""

    kind: Literal["Steps"] = "Steps"
    generation: Positive
    steps: Annotated[list[StepReport], Field(min_length=1, max_length=128)]
    dropped: Count = 0
    """Reports thinned out since the last message because the queue was full."""


class Ack(Message):
    """The worker runs its first step under this plan; ``step`` is that step's number, the same on all workers."""

    kind: Literal["Ack"] = "Ack"
    generation: Positive
    plan_version: Positive
    step: Positive


class Checkpointed(Message):
    """A checkpoint was committed (rank 0 only)."""

    kind: Literal["Checkpointed"] = "Checkpointed"
    generation: Positive
    step: Count
    samples: Count
    final: bool = False


class CheckpointFailed(Message):
    """A checkpoint could not be written, or is damaged (rank 0 only): training goes on, the older ones are unharmed."""

    kind: Literal["CheckpointFailed"] = "CheckpointFailed"
    generation: Positive
    step: Count
    message: Text = ""
    resumed: Count | None = None
    """When it was found damaged: the step of the older one that training went on from."""


class Metrics(Message):
    """Figures that the user's script reports, such as a held-out accuracy."""

    kind: Literal["Metrics"] = "Metrics"
    step: Count
    samples: Count
    values: Annotated[
        dict[Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z_][\w./-]*$")], float],
        Field(min_length=1, max_length=16),
    ]


class OutOfMemory(Message):
    """A pass of ``local_batch`` samples does not fit on the worker.

    For the plan that runs: it failed, and the worker runs its share in smaller passes. For a newer one: it was tried
    out and is refused; the group stays with its present plan until there is another.
    """

    kind: Literal["OutOfMemory"] = "OutOfMemory"
    generation: Count
    plan_version: Count
    local_batch: Positive
    message: Text = ""


class GroupLost(Message):
    """A collective failed: a peer is gone. The worker keeps its state and waits for the next Membership."""

    kind: Literal["GroupLost"] = "GroupLost"
    generation: Positive
    step: Count
    message: Text = ""


class Leaving(Message):
    """The worker was told to go (SIGTERM, preemption); it stays until a Membership without it, or its deadline."""

    kind: Literal["Leaving"] = "Leaving"
    reason: Text = ""
    grace_s: Seconds = 30.0


class Failed(Message):
    """The training script raised; the process is about to end with a non-zero code."""

    kind: Literal["Failed"] = "Failed"
    error: Text
    step: Count = 0


class Left(Message):
    """Last message of a life. ``finished``: the script ran to its end; ``drained``: left the group as planned."""

    kind: Literal["Left"] = "Left"
    reason: Literal["finished", "drained", "stopped"]
    step: Count = 0
    samples: Count = 0


Down = Annotated[Membership | Plan | Drain | Stop, Field(discriminator="kind")]
Up = Annotated[
    Hello
    | Ready
    | Steps
    | Ack
    | Checkpointed
    | CheckpointFailed
    | Metrics
    | OutOfMemory
    | GroupLost
    | Leaving
    | Failed
    | Left,
    Field(discriminator="kind"),
]

_DOWN: TypeAdapter[Down] = TypeAdapter(Down)
_UP: TypeAdapter[Up] = TypeAdapter(Up)


def parse_down(text: str | bytes) -> Down:
    """Read one message for a worker. Raises ``pydantic.ValidationError`` (a ``ValueError``) on anything else."""
    _check_size(text, MAX_DOWN_BYTES)
    return _DOWN.validate_json(text)


def parse_up(text: str | bytes) -> Up:
    """Read one message for the operator. Raises ``ValueError`` on what is too long, malformed or out of bounds."""
    _check_size(text, MAX_MESSAGE_BYTES)
    return _UP.validate_json(text)


def encode(message: Message | DownMessage) -> str:
    """Write a message as JSON. Raises ``ValueError`` when it would be too long for the channel."""
    text = message.model_dump_json()
    _check_size(text, MAX_DOWN_BYTES if isinstance(message, DownMessage) else MAX_MESSAGE_BYTES)
    return text


def _check_size(text: str | bytes, limit: int) -> None:
    size = len(text) if isinstance(text, bytes) else len(text.encode())
    if size >= limit:
        raise ValueError(f"message of {size} bytes; the channel takes less than {limit}")
