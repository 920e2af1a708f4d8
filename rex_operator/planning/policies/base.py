"""What a planning policy decides, and what it gets to see.

The state machine around it (windows, ceilings, roll-back, records) is the same for all policies, so that they can be
compared with each other. A policy says how a batch is shared, when other shares are worth a change, whether another
batch is taken at once, which batch is worth a trial, and how a trial is judged. A published rival answers only what its
paper answers, the rest it inherits from `Base`: nothing changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from rex_operator.api.spec import RexJobSpec
from rex_operator.planning.communication import Communication, Law
from rex_operator.planning.cooldown import Cooldown
from rex_operator.planning.devices import Devices
from rex_operator.planning.noise import NoiseScale
from rex_operator.planning.search import Measured, SearchRequest
from rex_operator.planning.straggler import SpeedChange
from rex_operator.planning.trial import Look, Trial
from rex_operator.planning.types import PlanDraft, WorkerInfo
from rex_operator.planning.verdict import Judgement
from rex_operator.planning.windows import GroupStep


@dataclass(frozen=True, slots=True)
class About:
    """What a policy is; `rex policies` prints it."""

    name: str
    """As a RexJob's ``planner.policy`` names it."""
    title: str
    reference: str
    """Where it was published."""
    rule: str
    """What it does, in a sentence."""
    ours: str = ""
    """What the publication leaves open and was chosen here; empty: nothing."""
    changes: tuple[Literal["shares", "batch", "passes"], ...] = ()
    """What it may change while a job runs."""
    exempt: Mapping[str, str] = field(default_factory=dict)
    """Checks of `rex_operator.testing` that its own rule breaks, each with the reason."""


@dataclass(frozen=True, slots=True)
class Scene:
    """All that is known at a moment; policies read it and change nothing in it."""

    spec: RexJobSpec
    workers: tuple[WorkerInfo, ...]
    devices: Devices
    cooldown: Cooldown
    at: float
    """Job time in seconds."""
    running: PlanDraft | None = None
    names: tuple[str, ...] = ()
    """Ids of the workers, in the order of the arrays in ``steps``."""
    steps: Sequence[GroupStep] = ()
    """The running plan's steps that count, in their order: after warm-up, unmarked, of full size."""
    early: Sequence[GroupStep] = ()
    """``steps``, or while there are none, the first steady ones of a trial's plan: enough to see what is far off."""
    change: SpeedChange | None = None
    """A worker's change of speed that was found just now; steps before it do not count any more."""
    drifting: bool = False
    """A worker's speed is drifting: its latest steps were taken just now for what it does."""
    in_trial: bool = False
    """A trial runs: what is asked is whether its shares are right."""
    epoch: int = 0
    """Passes over the data that lie behind; stays 0 where the data have no end."""
    step_s: float = 0.0
    """Usual seconds per step in the present window."""
    overhead_s: float = 0.0
    """Usual seconds per step beside the slowest worker's compute."""
    communication: Communication = field(default_factory=Communication)
    """How they depend on the plan."""
    law: Law | None = None
    """How they depend on the team, too; None: not known."""
    error: float = 0.0
    """Standard error of the logarithm of a worker's usual compute time in the present window."""
    noise: NoiseScale | None = None
    measured: tuple[Measured, ...] = ()
    remaining_samples: int | None = None
    """Samples that the job has left to train on; None: not known."""
    own_passes: bool = False
    """Each worker may take its own number of passes."""

    @property
    def noise_scale(self) -> float | None:
        """The noise scale in samples; None until it is known."""
        return None if self.noise is None else self.noise.value

    def ceilings(self) -> dict[str, int | None]:
        """Return the most samples per micro-batch of each worker; None: no bound is known."""
        return {w.worker_id: self.devices.ceiling(w) for w in self.workers}


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Other shares of the same batch."""

    shares: Mapping[str, int]
    slowest: str
    """The worker that all wait for now."""
    spread_before: float
    """Largest over smallest compute time now."""
    gain: float | None = None
    """Predicted relative gain of throughput; None: the policy predicts nothing."""
    spread_after: float | None = None
    """Largest over smallest compute time, as predicted."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """Another batch, to be taken without a trial."""

    global_batch: int
    accumulation: int
    why: str
    """A sentence for the record."""
    gain: float | None = None
    """Predicted relative gain of the objective."""


@dataclass(frozen=True, slots=True)
class Rung:
    """A larger batch for a trial that does far better than what it is compared with."""

    global_batch: int
    accumulation: int
    shown: float
    """Relative gain of the trial over the incumbent so far ..."""
    more: float
    """... and what the rung is predicted to add to that."""
    steps: int
    """Steps that ``shown`` stands on."""


class Policy(Protocol):
    """How one kind of planner shares batches and finds new ones.

    One object plans one job in one life of the operator; what it remembers of the job begins anew with another
    operator and, by `restarted`, with another team or batch.
    """

    about: ClassVar[About]

    def restarted(self) -> None:
        """Team or batch are other ones now."""
        ...

    def shares(self, scene: Scene, batch: int, accumulation: int) -> dict[str, int]:
        """Return the samples per worker and step; they sum to ``batch``. Raises ``CannotPlan``."""
        ...

    def passes(self, scene: Scene, shares: Mapping[str, int], accumulation: int) -> dict[str, int]:
        """Return in how many passes each worker takes its share; nothing: in ``accumulation``, all of them."""
        ...

    def rebalance(self, scene: Scene) -> Rebalance | None:
        """Return better shares of the running batch, if they are worth a change."""
        ...

    def adopt(self, scene: Scene) -> Adoption | None:
        """Return another batch that is to be taken at once, without a trial."""
        ...

    def search(self, scene: Scene, number: int) -> SearchRequest | None:
        """Return the search for the next trial; None while there is nothing to search with."""
        ...

    def climb(self, scene: Scene, trial: Trial) -> Rung | None:
        """Return the batch that a trial goes on with at once, before any verdict."""
        ...

    def due(self, trial: Trial, steps: Sequence[GroupStep]) -> Look | None:
        """Return the look that a trial's window is ripe for, if any."""
        ...

    def judge(self, trial: Trial, look: Look, steps: Sequence[GroupStep]) -> Judgement:
        """Take a look at a trial."""
        ...


class Base:
    """The answers of a policy that changes nothing, and judges trials as REX does."""

    def restarted(self) -> None:
        """Remember nothing."""

    def passes(self, scene: Scene, shares: Mapping[str, int], accumulation: int) -> dict[str, int]:
        """Return nothing: all workers take equally many passes."""
        return {}

    def rebalance(self, scene: Scene) -> Rebalance | None:
        """Return None: the shares stay."""
        return None

    def adopt(self, scene: Scene) -> Adoption | None:
        """Return None: no batch is taken untried."""
        return None

    def search(self, scene: Scene, number: int) -> SearchRequest | None:
        """Return None: no batch is tried."""
        return None

    def climb(self, scene: Scene, trial: Trial) -> Rung | None:
        """Return None: what is on trial stays."""
        return None

    def due(self, trial: Trial, steps: Sequence[GroupStep]) -> Look | None:
        """Return the planned look, if any."""
        return trial.due(steps)

    def judge(self, trial: Trial, look: Look, steps: Sequence[GroupStep]) -> Judgement:
        """Judge by rank test and margin."""
        return trial.judge(look, steps)
