"""What goes into the planner and what comes out of it, in plain data.

Whatever leaves the planner ends in a status, a ConfigMap, a JSON line or a web page, so every record here is bounded,
free of NaN and infinity, and says the same after a round through JSON. What only lives inside a process (a plan on its
way, a view for the screen) is a frozen dataclass; what is kept is a pydantic model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_DECISIONS = 64
"""Decisions that a planner remembers ..."""
KEPT_DECISIONS = 32
"""... and how many of them outlive the operator."""
MAX_CANDIDATES = 8
"""Runners-up that a decision names."""
MAX_NAMED_WORKERS = 64
"""A decision lists the shares of groups up to this size; of larger ones it keeps the batch only."""

DecisionKind = Literal[
    "trial-started",
    "climbed",
    "switchback",
    "adopted",
    "accepted",
    "rejected",
    "inconclusive",
    "rebalanced",
    "membership",
    "converged",
    "vetoed",
    "ceiling",
    "rescaled",
    "advised",
]


class CannotPlan(ValueError):
    """No plan satisfies the bounds; the message says which ones and what to change."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One life of a worker, as the planner needs to know it."""

    worker_id: str
    incarnation: str
    device: str
    """Kind of the device; workers of one kind share a curve."""
    max_local_batch: int | None = None
    """Known memory ceiling in samples per micro-batch; None: learned."""
    memory_bytes: int = 0
    """Of the device; 0 where that is not known."""
    pool: str = ""
    """Pool of the job that it is of: what it costs and draws stands there."""


@dataclass(frozen=True, slots=True)
class PlanDraft:
    """A plan before it has a version and a generation. The local batches sum to ``global_batch``, each at least 1."""

    global_batch: int
    accumulation: int
    """Passes per optimiser step that a worker takes at most."""
    local_batches: Mapping[str, int]
    """Samples per worker and optimiser step, over all of its passes."""
    learning_rate_factor: float
    warmup_samples: int = 0
    """Samples of the job over which the rate climbs to its full height."""
    initial_batch: int = 0
    """The batch that the script's rate and schedule are meant for; 0: this one."""
    passes: Mapping[str, int] = field(default_factory=dict)
    """Passes of each worker that takes fewer than ``accumulation``."""

    def passes_of(self, worker_id: str) -> int:
        """Return in how many passes a worker takes its share."""
        return self.passes.get(worker_id, self.accumulation)

    def takes_as_long_as(self, other: PlanDraft) -> bool:
        """Return whether the two differ in nothing that takes time: in the learning rate at most."""
        mine, theirs = ((p.local_batches, p.accumulation, p.passes) for p in (self, other))
        return mine == theirs

    def micro_batch(self, worker_id: str) -> int:
        """Return the samples of the worker's largest pass."""
        return math.ceil(self.local_batches[worker_id] / self.passes_of(worker_id))


class Record(BaseModel):
    """A piece of what is kept: closed, immutable, JSON without NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PlanSummary(Record):
    """A plan as a decision tells it."""

    global_batch: int
    accumulation: int
    local_batches: dict[str, int] = {}
    """Empty for groups of more than ``MAX_NAMED_WORKERS``."""
    passes: dict[str, int] = {}
    """Of each worker that takes its share in fewer than ``accumulation``; empty where ``local_batches`` is."""
    learning_rate_factor: float

    @classmethod
    def of(cls, draft: PlanDraft) -> PlanSummary:
        """Return the summary of a draft."""
        named = dict(draft.local_batches) if len(draft.local_batches) <= MAX_NAMED_WORKERS else {}
        return cls(
            global_batch=draft.global_batch,
            accumulation=draft.accumulation,
            local_batches=named,
            passes={worker: own for worker, own in draft.passes.items() if worker in named},
            learning_rate_factor=draft.learning_rate_factor,
        )


class Evidence(Record):
    """The test behind a verdict. Times are goodput-normalised, so that lower is better (algorithms of the planner)."""

    p_better: float
    """One-sided p-value that the trial is no better than the reference."""
    p_worse: float
    effect: float
    """Relative gain of the trial, Hodges-Lehmann: 0.05 = 5 % less time per useful sample; negative = a loss."""
    interval: tuple[float, float] | None = None
    """95 % interval of ``effect``."""
    a12: float
    """Vargha-Delaney A: chance that a trial step beats a reference step; 0.5 = no difference."""
    n_reference: int
    """Steps in the reference window."""
    n_trial: int
    block: int = 1
    """Steps per block median that the test was run on."""
    look: int
    """1 or 2: which of the two planned looks."""
    alpha: float
    """One-sided level that ``p_better`` had to reach at this look."""
    switchback: bool = False
    """The incumbent ran again after the trial, and both of its windows are the reference: steady drift cancels."""
    drift: float | None = None
    """Relative change of the incumbent's own time from its first to its second window; None: no switchback."""
    budget_spent: float | None = None
    """Most false changes to be expected over all trials of the job so far, this one counted in."""


class Cost(Record):
    """What a trial cost, all of it: warm-up, both plans, and the way back so far as it was gone."""

    steps: int
    """Steps of the job from the trial's start to the decision."""
    seconds: float
    """Job time from the trial's start to the decision."""
    samples: float
    """Useful samples won (negative: lost) in that time against the incumbent at its usual pace."""


class CandidateSummary(Record):
    """A batch that the search considered."""

    global_batch: int
    accumulation: int
    expected_gain: float
    """Predicted relative change of the objective against what ran."""
    ei: float
    """Expected improvement of the logarithm of the objective, less what trying costs; 0 if nothing is to be won."""
    chance: float = 0.0
    """Chance that it is better by the practical margin, and fits in memory."""
    trial_s: float = 0.0
    """Seconds that its trial is expected to take."""


class DecisionRecord(Record):
    """One thing that the planner decided, and why."""

    time_s: float
    """The planner's clock (monotonic) at the decision."""
    step: int
    samples: int
    kind: DecisionKind
    plan_from: PlanSummary | None = None
    plan_to: PlanSummary | None = None
    reason: Annotated[str, Field(max_length=512)]
    evidence: Evidence | None = None
    expectation: float | None = None
    """Relative gain that was predicted beforehand."""
    candidates: Annotated[tuple[CandidateSummary, ...], Field(max_length=MAX_CANDIDATES)] = ()
    cost: Cost | None = None
    """Of the trial that the decision ends."""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """How one worker does; times are medians over its present window, None until measured."""

    local_batch: int
    compute_s: float | None = None
    wait_s: float | None = None
    stale: bool = False
    """Nothing was heard of it for longer than the bound, while it should be training."""
    comm_s: float | None = None
    """None also where a worker tells it together with ``wait_s``."""


@dataclass(frozen=True, slots=True)
class TrialView:
    """The trial that runs."""

    global_batch: int
    accumulation: int
    steps: int
    """Steps in its window so far."""
    needed: int
    """Steps at which the next look is taken."""
    look: int
    back: bool = False
    """The incumbent runs again, for the second part of the reference."""


@dataclass(frozen=True, slots=True)
class PlannerView:
    """The planner at a glance, for status, screen and metrics. Rates are None until there is something to divide."""

    throughput: float | None = None
    """Samples per second of the whole group."""
    goodput: float | None = None
    """Throughput x statistical efficiency; equals ``throughput`` while the noise scale is unknown."""
    noise_scale: float | None = None
    """Gradient noise scale, in samples."""
    step_s: float | None = None
    """Median seconds per step."""
    step: int = 0
    samples: int = 0
    loss: float | None = None
    """Loss of the last complete step, averaged over samples."""
    workers: Mapping[str, WorkerView] = field(default_factory=dict)
    trial: TrialView | None = None
    trials: int = 0
    """Trials started so far."""
    budget_spent: float = 0.0
    """Most false changes to be expected over all trials so far."""
    next_level: float = 0.0
    """One-sided level that the next trial has to reach."""
    converged: bool = False
    diverged: bool = False
    """A step of the present plan had a loss that was not finite."""
    price_per_hour: float | None = None
    """Of the present workers; None unless all their pools have a price."""
    price_per_million: float | None = None
    """For a million useful samples at the present rate."""
    watts: float | None = None
    """Modelled draw of all devices; None where that of one is not known."""
    joules_per_sample: float | None = None
    """Modelled, per useful sample."""
    advice: str | None = None
    """Which workers do not pay for themselves, if any and if the objective is a price or energy."""
    last_decision: DecisionRecord | None = None
    set_aside: Mapping[str, int] = field(default_factory=dict)
    """Reports that were not used, by reason."""
