"""A run as the report sees it: plain data, bounded whatever the length of the run and the size of the group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rex_operator.report.thin import Thinned

MAX_STEPS = 1500
MAX_STRETCHES = 400
MAX_ROWS = 500
MAX_WORKERS = 24
"""Workers drawn one by one; of a larger group the first of them by id."""
MAX_CANDIDATES = 8
"""Batches named per decision."""


@dataclass(frozen=True)
class Step:
    """One optimiser step of the group. Times in seconds; per-worker figures by worker id."""

    t: float
    step: int
    samples: int
    global_batch: float
    step_s: float | None
    loss: float | None
    samples_per_s: float | None
    goodput: float | None
    noise_scale: float | None
    local_batches: Mapping[str, float]
    compute_s: Mapping[str, float]
    wait_s: Mapping[str, float]
    comm_s: Mapping[str, float]
    """Empty where communication is part of ``wait_s`` (records of older runs, first steps)."""
    spread: float | None
    """Largest over smallest compute time of the workers."""


@dataclass
class Stretch:
    """The steps that ran under one plan."""

    version: int
    first: Step
    last: Step
    global_batch: float
    local_batches: Mapping[str, float]
    steps: Thinned[Step] = field(default_factory=lambda: Thinned(60))


@dataclass(frozen=True)
class Measured:
    """A held-out figure that the script reported."""

    t: float
    samples: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class Shape:
    """A plan as a decision names it."""

    global_batch: int | None
    accumulation: int | None
    local_batches: Mapping[str, float]
    learning_rate_factor: float | None
    own_passes: bool = False
    """Some workers take their share in fewer passes than ``accumulation``."""


@dataclass(frozen=True)
class Evidence:
    """The figures behind a verdict; ``effect`` and ``interval`` are relative gains (0.1 = 10 % better)."""

    p_better: float | None
    p_worse: float | None
    effect: float | None
    interval: tuple[float, float] | None
    a12: float | None
    n_reference: int | None
    n_trial: int | None
    look: int | None
    level: float | None
    """One-sided level that ``p_better`` had to reach."""
    switchback: bool
    """The plan before ran again after the trial, and counts as reference."""
    budget_spent: float | None
    """Most changes by chance to be expected over all trials so far."""


@dataclass(frozen=True)
class Candidate:
    """A batch that was considered."""

    global_batch: int
    accumulation: int
    expected_gain: float | None
    chance: float | None
    """That it is better, and fits."""


@dataclass(frozen=True)
class Cost:
    """What the trial took that a decision ends; ``samples`` are useful ones won (negative: lost)."""

    steps: int
    seconds: float
    samples: float | None


@dataclass(frozen=True)
class Decision:
    """One decision of the planner."""

    t: float
    step: int | None
    verdict: str
    reason: str
    before: Shape | None
    after: Shape | None
    evidence: Evidence | None
    expectation: float | None
    candidates: tuple[Candidate, ...] = ()
    cost: Cost | None = None


@dataclass(frozen=True)
class Happening:
    """Something else worth a line: a new membership, a lost worker, a checkpoint."""

    t: float
    kind: str
    text: str


@dataclass
class Record:
    """The bounded picture of a run."""

    name: str = ""
    steps: Thinned[Step] = field(default_factory=lambda: Thinned(MAX_STEPS))
    stretches: list[Stretch] = field(default_factory=list)
    metrics: Thinned[Measured] = field(default_factory=lambda: Thinned(MAX_STEPS))
    decisions: list[Decision] = field(default_factory=list)
    happenings: list[Happening] = field(default_factory=list)
    devices: dict[str, str] = field(default_factory=dict)
    workers: dict[str, None] = field(default_factory=dict)
    """Worker ids in order of appearance."""
    plans: int = 0
    """Plans that were issued."""
    best: dict[str, float] = field(default_factory=dict)
    success: bool | None = None
    reason: str = ""
    message: str = ""
    duration_s: float = 0.0
    lines: int = 0
    set_aside: int = 0
    """Lines that could not be read."""
    left_out: int = 0
    """Decisions and happenings beyond the limit."""
