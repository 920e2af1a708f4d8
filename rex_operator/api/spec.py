"""What a user may ask of REX: the ``spec`` of a RexJob.

One description serves three readers: the CRD's schema is generated from it, ``rex run`` reads manifests with it, and
the controller checks with it what an older schema may have let through. Every number, string and list has bounds, so
that the API server itself refuses a bad manifest even while no operator runs; rules across fields are written here once
and appear in the CRD as CEL.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, field_validator, model_validator
from pydantic.alias_generators import to_camel

from rex_operator.api.cel import rules
from rex_operator.api.quantity import QUANTITY_PATTERN, check_resource, parse_quantity
from rex_operator.api.watts import KNOWN, published
from rex_worker.pod import MAX_DEVICES

MAX_POOLS = 16
MAX_WORKERS = 1024
MAX_BATCH = 2**24
MAX_SHARE = 4096
DEVICES = ("nvidia.com/gpu", "amd.com/gpu")
"""Resources whose amount is the number of a pod's devices."""

DnsLabel = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
Workers = Annotated[int, Field(ge=1, le=MAX_WORKERS)]
Batch = Annotated[int, Field(ge=1, le=MAX_BATCH)]
Seconds = Annotated[int, Field(ge=1, le=31_536_000)]
_KEYS_FIT = ("self.all(key, size(key) >= 1 && size(key) <= 317)", "a key has 1 to 317 characters")
LabelMap = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=317)], Annotated[str, Field(max_length=63)]],
    Field(max_length=32, json_schema_extra=rules(_KEYS_FIT)),
]
Amount = Annotated[
    str | int,
    Field(json_schema_extra={"x-kubernetes-int-or-string": True, "pattern": QUANTITY_PATTERN, "maxLength": 32}),
]
Amounts = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=317)], Amount],
    Field(
        max_length=32,
        json_schema_extra=rules(
            _KEYS_FIT,
            (
                "self.all(key, type(self[key]) != int || int(self[key]) >= 0)",
                "a resource amount is not negative",
            ),
            (
                "self.all(key, key in ['cpu', 'memory', 'ephemeral-storage'] || key.startsWith('hugepages-')"
                " || type(self[key]) != string || (isQuantity(string(self[key]))"
                " && quantity(string(self[key])).isInteger()))",
                "devices cannot be split here: give a whole number",
            ),
        ),
    ),
]

PolicyName = Literal[
    "rex",
    "even",
    "lbb",
    "lb-bsp",
    "boa",
    "dlb",
    "omnilearn",
    "adaptdl",
    "cannikin",
    "saddle",
    "dynamix",
    "raw-mwu",
    "always-accept",
]


Objective = Literal["goodput", "throughput", "cost", "energy"]


class ApiModel(BaseModel):
    """camelCase outside, snake_case inside; an unknown field is an error that names it."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


class WorkerRange(ApiModel):
    """How many workers the job may have, over all pools."""

    model_config = ConfigDict(json_schema_extra=rules(("self.min <= self.max", "min is greater than max")))

    min: Workers = 1
    """Fewer never train: below this the job waits and holds no device for longer than the pending bound."""
    max: Workers = 1
    """More are never used; ``kubectl scale`` sets this."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is greater than max ({self.max})")
        return self


class Resources(ApiModel):
    """Resource requests and limits of the trainer container, as in a pod."""

    limits: Amounts = {}
    """Most that the container may use, for example ``nvidia.com/gpu: 1``."""
    requests: Amounts = {}
    """What the container is guaranteed; devices take the limit."""

    @field_validator("limits", "requests")
    @classmethod
    def _amounts(cls, amounts: dict[str, str | int]) -> dict[str, str | int]:
        for name, amount in amounts.items():
            check_resource(name, amount)
        return amounts


def check_devices(limits: dict[str, Any], devices: int, where: str) -> None:
    """Raise ``ValueError`` when ``limits`` asks for another number of devices than the pod's workers have."""
    for name in DEVICES:
        if name in limits and parse_quantity(limits[name]) != devices:
            raise ValueError(
                f"{where}: {name} is {limits[name]}, but devicesPerPod is {devices}; each device has a worker of its"
                " own, so they must be the same"
            )


class Toleration(ApiModel):
    """A pod's toleration."""

    key: Annotated[str, Field(max_length=317)] = ""
    """Key of the taint; empty with ``Exists`` tolerates every taint."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """``Exists`` takes any value of the key, ``Equal`` only ``value``."""
    value: Annotated[str, Field(max_length=63)] = ""
    """Value of the taint, with ``Equal``."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Effect of the taint; empty: any."""
    toleration_seconds: Annotated[int | None, Field(ge=0, le=31_536_000)] = None
    """How long a ``NoExecute`` taint is tolerated; absent: for ever."""


Watts = Annotated[float, Field(ge=0, le=100_000)]


class MeasuredWatts(ApiModel):
    """A device's average power while it computes, as its own meter told it."""

    local_batch: Batch
    """Samples per micro-batch."""
    watts: Annotated[float, Field(gt=0, le=100_000)]
    """Drawn at that size."""


class Power(ApiModel):
    """What a device of the pool draws."""

    model_config = ConfigDict(
        json_schema_extra=rules(("self.idleWatts <= self.maxWatts", "idleWatts is more than maxWatts"))
    )

    idle_watts: Watts
    """While it waits for others, with a job on it."""
    max_watts: Annotated[float, Field(gt=0, le=100_000)]
    """The most that it may draw: its power limit."""
    measured: Annotated[list[MeasuredWatts], Field(max_length=8)] = []
    """Two to five measurements of this very job make the model's watts several times nearer to the truth."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.idle_watts > self.max_watts:
            raise ValueError(f"idleWatts ({self.idle_watts:g}) is more than maxWatts ({self.max_watts:g})")
        return self


class Pool(ApiModel):
    """A kind of device that the job may use."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("self.minWorkers <= self.maxWorkers", "minWorkers is greater than maxWorkers"),
            (
                "self.minWorkers % self.devicesPerPod == 0 && self.maxWorkers % self.devicesPerPod == 0",
                "minWorkers and maxWorkers must be multiples of devicesPerPod: a pod's workers come and go together",
            ),
            *(
                (
                    f"!has(self.resources) || !has(self.resources.limits) || !('{name}' in self.resources.limits)"
                    f" || string(self.resources.limits['{name}']) == string(self.devicesPerPod)",
                    f"devicesPerPod must be the number of {name} in resources.limits",
                )
                for name in DEVICES
            ),
        )
    )

    name: DnsLabel
    """Name of the pool within the job."""
    min_workers: Annotated[int, Field(ge=0, le=MAX_WORKERS)] = 0
    """Workers of this pool without which the job does not train."""
    max_workers: Annotated[int, Field(ge=0, le=MAX_WORKERS)] = 1
    """Most workers of this pool; 0 leaves it out."""
    devices_per_pod: Annotated[int, Field(ge=1, le=MAX_DEVICES)] = 1
    """Devices, and so workers, of each pod. With more than 1 the trainer's command is
    ``python -m rex_worker.launch -- python train.py``, and the numbers of workers are multiples of it."""
    node_selector: LabelMap = {}
    """Labels of the nodes; the value of ``rex.dev/device`` names the kind of device, whose workers share a curve."""
    tolerations: Annotated[list[Toleration], Field(max_length=16)] = []
    """Added to those of the template."""
    resources: Resources = Resources()
    max_local_batch: Annotated[int | None, Field(ge=1, le=MAX_BATCH)] = None
    """Memory ceiling in samples per worker and micro-batch; learned when absent."""
    price_per_hour: Annotated[float | None, Field(ge=0, le=1_000_000)] = None
    """Price of one device for an hour, in any currency that all pools share; ``objective: cost`` needs it."""
    power: Power | None = None
    """What one device draws; absent: as published for the kind of device, where it is a known one."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_workers > self.max_workers:
            raise ValueError(f"minWorkers ({self.min_workers}) is greater than maxWorkers ({self.max_workers})")
        return self

    @model_validator(mode="after")
    def _whole_pods(self) -> Self:
        devices = self.devices_per_pod
        for name, count in (("minWorkers", self.min_workers), ("maxWorkers", self.max_workers)):
            if count % devices:
                raise ValueError(
                    f"{name} ({count}) is not a multiple of devicesPerPod ({devices}): a pod's workers come and go"
                    " together"
                )
        check_devices(self.resources.limits, devices, "resources.limits")
        return self

    @property
    def device(self) -> str:
        """Kind of the pool's devices: the ``rex.dev/device`` label that it selects, else the pool's own name."""
        return self.node_selector.get("rex.dev/device", self.name)


class BatchRange(ApiModel):
    """Global batch sizes, in samples per optimiser step."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("self.min <= self.max", "min is greater than max"),
            ("self.min <= self.initial && self.initial <= self.max", "initial is outside min..max"),
        )
    )

    initial: Batch
    """Global batch of the first plan, the one that the script's learning rate is meant for."""
    min: Batch = 1
    """Smallest global batch that may be tried."""
    max: Batch
    """Largest global batch that may be tried."""
    min_share: Annotated[int, Field(ge=1, le=MAX_SHARE)] = 1
    """Fewest samples that a plan gives a worker in each pass; more than 1 for models whose layers look at the batch
    as a whole, as batch normalisation does."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is greater than max ({self.max})")
        if not self.min <= self.initial <= self.max:
            raise ValueError(f"initial ({self.initial}) is outside min..max ({self.min}..{self.max})")
        return self

    @property
    def most_workers(self) -> int:
        """Workers that the largest batch can give ``min_share`` samples each."""
        return self.max // self.min_share


class LearningRate(ApiModel):
    """How the learning rate follows the global batch."""

    model_config = ConfigDict(
        json_schema_extra=rules(("self.scaling != 'legw' || self.warmupSamples > 0", "legw needs warmupSamples"))
    )

    scaling: Literal["adascale", "linear", "sqrt", "legw", "none"] = "adascale"
    """Rule by which the rate of ``batch.initial`` becomes that of the running batch; ``none`` leaves it alone."""
    warmup_samples: Annotated[int, Field(ge=0, le=2**53)] = 0
    """Samples of the job over which the rate climbs from 0; under ``legw`` times the batch over ``batch.initial``."""

    @model_validator(mode="after")
    def _warm(self) -> Self:
        if self.scaling == "legw" and self.warmup_samples == 0:
            raise ValueError("legw needs warmupSamples: it is the square-root rule with a warm-up; or choose sqrt")
        return self


class Sync(ApiModel):
    """How workers are kept in step."""

    mode: Literal["bsp"] = "bsp"
    """``bsp``: every step is one averaged step of all workers."""


class Validation(ApiModel):
    """When a change counts as shown to help."""

    model_config = ConfigDict(
        json_schema_extra=rules(("self.minSteps <= self.maxSteps", "minSteps is greater than maxSteps"))
    )

    alpha: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    """Most that the chance of accepting a change that does not help may be, per trial."""
    min_effect: Annotated[float, Field(ge=0, le=1)] = 0.02
    """Gain that a change must be shown to exceed, relative (0.02 = 2 %)."""
    warmup_steps: Annotated[int, Field(ge=0, le=10_000)] = 5
    """Steps after each change that are not measured."""
    min_steps: Annotated[int, Field(ge=4, le=100_000)] = 20
    """Measured steps before the first look at a trial."""
    max_steps: Annotated[int, Field(ge=4, le=1_000_000)] = 400
    """Measured steps after which a trial ends as inconclusive."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_steps > self.max_steps:
            raise ValueError(f"minSteps ({self.min_steps}) is greater than maxSteps ({self.max_steps})")
        return self


class SearchLimits(ApiModel):
    """How much may be tried."""

    max_trials: Annotated[int, Field(ge=0, le=10_000)] = 40
    """Trials over the life of the job; 0: none, shares still move between the workers."""
    cooldown_seconds: Annotated[float, Field(ge=0, le=86_400)] = 60
    """Pause after a trial that was not kept; twice as long in its direction after each further one. None after one that
    was kept."""


class PlannerSpec(ApiModel):
    """Which policy plans the batches, for what, and how sure it must be."""

    policy: PolicyName = "rex"
    """``rex``: re-split and search while training; ``even``: equal shares, never changed (the baseline); the others are
    published rivals, told by ``rex policies``."""
    objective: Objective = "goodput"
    """What a change must improve: samples/s x statistical efficiency (``goodput``), samples/s alone (``throughput``),
    useful samples per price (``cost``) or per joule (``energy``)."""
    validation: Validation = Validation()
    search: SearchLimits = SearchLimits()


class Checkpoint(ApiModel):
    """Where and how often the training's state is kept."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!self.path.startsWith('/') && !self.path.contains('$') && !self.path.split('/').exists(p, p == '..')",
                "path: must be a relative path inside the volume, without '..' and '$'",
            )
        )
    )

    claim_name: Annotated[str | None, Field(min_length=1, max_length=253)] = None
    """PersistentVolumeClaim that all workers mount; not used by ``rex run``, which writes into the run's folder."""
    path: Annotated[str, Field(min_length=1, max_length=512)]
    """Folder inside the volume."""
    every_steps: Annotated[int, Field(ge=1, le=10_000_000)] = 200
    """Optimiser steps between two checkpoints."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 3
    """Newest checkpoints that are kept."""

    @field_validator("path")
    @classmethod
    def _contained(cls, path: str) -> str:
        if path.startswith("/") or "\0" in path or "$" in path or ".." in path.split("/"):
            raise ValueError("must be a relative path inside the volume, without '..' and '$'")
        return path


class FailureRule(ApiModel):
    """What to do about a worker that ended with one of these exit codes or reasons; the first match counts."""

    exit_codes: Annotated[list[Annotated[int, Field(ge=1, le=255)]], Field(max_length=64)] = []
    """Exit codes of the trainer container."""
    reasons: Annotated[list[Annotated[str, Field(min_length=1, max_length=128)]], Field(max_length=64)] = []
    """Reasons of the pod or container, for example ``Preempted``, ``OOMKilled``."""
    action: Literal["Fail", "Ignore", "Restart"]
    """``Fail`` ends the job, ``Restart`` replaces the worker and charges the budget, ``Ignore`` does not charge it."""


class Failure(ApiModel):
    """How many restarts the job may use up. Preemption, eviction, node loss and planned changes are never charged."""

    max_restarts: Annotated[int, Field(ge=0, le=10_000)] = 10
    """Charged restarts after which the job fails."""
    rules: Annotated[list[FailureRule], Field(max_length=32)] = []
    """Looked through in order; without a match, program errors are charged and everything else is not."""


_KEPT = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
Template = Annotated[
    dict[str, Any], WithJsonSchema({**_KEPT, "properties": {"metadata": _KEPT, "spec": _KEPT}, "required": ["spec"]})
]


class RexJobSpec(ApiModel):
    """The wish of a user. See docs/reference for each field."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("self.pools.map(p, p.maxWorkers).sum() >= self.workers.min", "workers.min is more than the pools' room"),
            (
                "self.pools.map(p, p.minWorkers).sum() <= self.workers.max",
                "the pools' minWorkers together are more than workers.max",
            ),
            (
                "self.batch.max >= self.batch.minShare * self.workers.min",
                "batch.max cannot be split over workers.min: each worker needs batch.minShare samples",
            ),
            (
                "self.pools.all(p, !has(p.maxLocalBatch) || p.maxLocalBatch >= self.batch.minShare)",
                "a pool's maxLocalBatch is less than batch.minShare: its workers could take no part",
            ),
            (
                "self.planner.objective != 'cost' || (self.pools.all(p, has(p.pricePerHour))"
                " && self.pools.exists(p, p.pricePerHour > 0.0))",
                "objective cost needs pricePerHour of every pool, and one above 0; without prices choose goodput",
            ),
            (
                "self.planner.objective != 'energy' || self.pools.all(p, has(p.power)"
                " || (has(p.nodeSelector) && 'rex.dev/device' in p.nodeSelector"
                f" ? p.nodeSelector['rex.dev/device'] : p.name).lowerAscii().matches('{KNOWN}'))",
                "objective energy: a pool's device is not in the catalogue; set its power (idleWatts and maxWatts)",
            ),
            (
                "self.pools.all(p, self.pools.exists_one(q, q.name == p.name))",
                "two pools have the same name",
            ),
            (
                "size(self.pools) == size(oldSelf.pools)"
                " && self.pools.all(p, oldSelf.pools.exists(q, q.name == p.name))",
                "pools cannot be added, removed or renamed once the job exists; create a new job",
            ),
            (
                "self.pools.all(p, oldSelf.pools.all(q, q.name != p.name || q.devicesPerPod == p.devicesPerPod))",
                "devicesPerPod is immutable: running pods would differ from new ones; create a new job",
            ),
            (
                "self.template == oldSelf.template",
                "template is immutable: running workers would differ from new ones; create a new job",
            ),
            (
                "has(self.checkpoint) == has(oldSelf.checkpoint)"
                " && (!has(self.checkpoint) || self.checkpoint == oldSelf.checkpoint)",
                "checkpoint is immutable: what was saved would be lost; create a new job",
            ),
        )
    )

    suspend: bool = False
    """True drains the workers and keeps the job; false lets it go on from its checkpoint."""
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    """Wish for the order among jobs; kept, not yet acted upon."""
    workers: WorkerRange
    pools: Annotated[list[Pool], Field(min_length=1, max_length=MAX_POOLS)]
    """Kinds of device that the job may use; their names cannot change once the job exists."""
    template: Template
    """A PodTemplateSpec, kept as it was written; the container named ``trainer`` gets the REX environment."""
    batch: BatchRange
    learning_rate: LearningRate = LearningRate()
    sync: Sync = Sync()
    planner: PlannerSpec = PlannerSpec()
    checkpoint: Checkpoint | None = None
    failure: Failure = Failure()
    active_deadline_seconds: Seconds | None = None
    """The job fails when it has not ended this long after it first trained."""
    pending_deadline_seconds: Seconds = 600
    """Devices held without reaching ``workers.min`` are given back after this long."""
    ttl_seconds_after_finished: Annotated[int | None, Field(ge=0, le=31_536_000)] = None
    """The job is deleted this long after its end; absent: kept."""
    clean_pod_policy: Literal["Running", "All", "None"] = "Running"
    """Pods deleted at the end: those that still run, all, or none. Failed pods are kept by default, for their logs."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        names = [pool.name for pool in self.pools]
        if len(set(names)) != len(names):
            raise ValueError("pools: two pools have the same name")
        room = sum(pool.max_workers for pool in self.pools)
        if self.workers.min > room:
            raise ValueError(f"workers.min ({self.workers.min}) is more than the pools' maxWorkers together ({room})")
        floor = sum(pool.min_workers for pool in self.pools)
        if floor > self.workers.max:
            raise ValueError(f"the pools' minWorkers together ({floor}) are more than workers.max ({self.workers.max})")
        share = self.batch.min_share
        if self.batch.max < share * self.workers.min:
            raise ValueError(
                f"batch.max ({self.batch.max}) cannot be split over workers.min ({self.workers.min}): each worker needs"
                f" batch.minShare ({share}) samples"
            )
        for pool in self.pools:
            if pool.max_local_batch is not None and pool.max_local_batch < share:
                raise ValueError(
                    f"pools: maxLocalBatch ({pool.max_local_batch}) of {pool.name} is less than batch.minShare"
                    f" ({share}): its workers could take no part"
                )
        self._check_objective()
        most = sum(self.filled().values())
        if most < self.workers.min:
            raise ValueError(
                f"workers: whole pods of these pools make {most} workers within max ({self.workers.max}) and batch.max"
                f" ({self.batch.max}), fewer than min ({self.workers.min}); let all be multiples of devicesPerPod"
            )
        return self

    def _check_objective(self) -> None:
        prices = {pool.name: pool.price_per_hour for pool in self.pools}
        if self.planner.objective == "cost":
            missing = [name for name, price in prices.items() if price is None]
            if missing:
                raise ValueError(
                    f"planner.objective cost needs pools[].pricePerHour; it is missing for {', '.join(missing)}"
                    " (0 for a device that costs nothing)"
                )
            if not any(prices.values()):
                raise ValueError(
                    "planner.objective cost: pricePerHour is 0 for all pools, so nothing can be saved; set prices or"
                    " choose goodput"
                )
        if self.planner.objective == "energy":
            unknown = [p for p in self.pools if p.power is None and published(p.device) is None]
            if unknown:
                names = ", ".join(f"{pool.name} (device {pool.device})" for pool in unknown)
                raise ValueError(
                    f"planner.objective energy: it is not known what the devices of {names} draw; set pools[].power"
                    " with idleWatts and maxWatts"
                )

    def filled(self) -> dict[str, int]:
        """Workers per pool where there is room for all: the pools' minimums first, then as listed, in whole pods.

        No more than ``workers.max``, and than the largest batch can give ``batch.minShare`` samples each.
        """
        counts = {pool.name: pool.min_workers for pool in self.pools}
        for pool in self.pools:
            free = min(self.workers.max, self.batch.most_workers) - sum(counts.values())
            more = max(0, min(free, pool.max_workers - counts[pool.name]))
            counts[pool.name] += more - more % pool.devices_per_pod
        return counts

    def trainer(self) -> dict[str, Any]:
        """The container that trains, as the user wrote it. Raises ``ValueError`` that says what the template lacks."""
        spec = self.template.get("spec")
        if not isinstance(spec, dict):
            raise ValueError("spec.template.spec: missing; give a pod spec with a container named 'trainer'")
        containers = spec.get("containers")
        if not isinstance(containers, list):
            raise ValueError("spec.template.spec.containers: missing; give a container named 'trainer'")
        for container in containers:
            if isinstance(container, dict) and container.get("name") == "trainer":
                return container
        raise ValueError("spec.template.spec.containers: no container is named 'trainer'")
