"""A candidate plan on probation.

The figure compared is the time per useful sample, t / (B x EFF(B)), with the efficiency frozen at what was known
before, so that the noise scale's own wandering cannot decide. (Where energy is the objective it is joules instead of
time, the devices' power frozen alike.) The reference is the window directly before, and where that is not enough the
one directly after as well, so that drift hits both alike. Two looks are planned; what would make the numbers
meaningless (a diverged loss, a clearly worse loss, memory) vetoes before any look.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rex_operator.api.spec import Validation
from rex_operator.planning.objective import Meter
from rex_operator.planning.statistics import Sample, block_medians, hodges_lehmann, mann_whitney, spread, usable
from rex_operator.planning.types import CandidateSummary, PlanDraft, TrialView
from rex_operator.planning.verdict import (
    MIN_BLOCKS,
    Judgement,
    Levels,
    beyond_dependence,
    block_length,
    compare_with_both,
    explained_by_drift,
    judge_pairs,
    longer,
    look_levels,
)
from rex_operator.planning.windows import GroupStep

LOSS_ALPHA = 0.01
"""One-sided level at which a worse loss vetoes ..."""
LOSS_MARGIN = 0.05
"""... if it is also worse by this share: a batch of another size has another spread of losses."""
LOSS_SPREADS = 0.5
"""... and by this much of the spread of single steps: near its floor a loss doubles and halves for no reason."""
MAX_ADJUSTMENTS = 2
"""Times that shares may be corrected inside a trial before it is judged: its curves are extrapolated at first ..."""
MOST_ADJUSTMENTS = 6
"""... and how often at most, where so much is to be gained:"""
FAR_OFF = 0.08
"""a trial under such shares would judge them, not its batch."""

SURE = 0.25
"""Difference from a reference that was carried over which needs no run of the incumbent under the new conditions."""
MAX_TRANSLATIONS = 4
"""Changes of speed that a trial survives; with more it cannot be told any more what is compared with what."""
AGAIN = 0.10
"""Gain of a climb's last rung over the one before that no slow start of a team explains, as that is over only once."""


@dataclass(frozen=True, slots=True)
class Look:
    """One of the planned looks at a trial."""

    number: int
    level: float
    """One-sided, for the better."""
    final: bool
    worse: float = 0.0
    """One-sided, for the worse."""


def steps_needed(spec: Validation, *series: Sample, level: float | None = None) -> int:
    """Return the steps that give enough blocks for the measured dependence of the times, within the spec's bounds.

    A stricter one-sided ``level`` than half of the spec's alpha takes more steps, so that it costs no power.
    """
    block = block_length(*(np.log(usable(times)[0]) for times in series))
    steps = max(spec.min_steps, (MIN_BLOCKS + 2) * block)
    return min(math.ceil(steps * longer(spec.alpha / 2, spec.alpha / 2 if level is None else level)), spec.max_steps)


@dataclass(slots=True)
class Trial:
    """A trial that runs; ``plan`` is its present plan.

    First the plan runs, for a look at as many steps as their dependence asks for. If that says nothing yet, or nothing
    that could not be drift, it runs for as long again. Then the incumbent runs again for a window (`go_back`), and the
    last look compares each half of the trial with the incumbent's window next to it.
    """

    incumbent: PlanDraft
    plan: PlanDraft
    choice: CandidateSummary
    reference: Sample
    """Seconds (or joules) per useful sample of the incumbent's last steps, in their order."""
    reference_losses: Sample
    useful: float
    """Useful samples per step of the trial: batch x frozen efficiency."""
    spec: Validation
    meter: Meter = field(default_factory=lambda: Meter("goodput"))
    """What counts the cost of steps, frozen too."""
    reference_last: int = -1
    """Group step of the reference's end."""
    noise_scale: float | None = None
    """What samples count by, in samples; the same for all that is compared."""
    initial_batch: int = 1
    incumbent_useful: float = 1.0
    """Useful samples per step of the incumbent."""
    wary: bool = False
    """Nothing better is believed without a way back: the incumbent may not have been at its full pace yet."""
    level: float | None = None
    """One-sided level for the better over all looks; None: half of the spec's alpha."""
    shown: float | None = None
    """Relative gain over the incumbent of the rung that it climbed from last."""
    below: tuple[PlanDraft, float, float | None] | None = None
    """The rung that it climbed from last: plan, useful samples per step, and what was shown before it."""
    at_the_top: bool = False
    """It had to step down once; it climbs no more."""
    speeds: Mapping[str, float] = field(default_factory=dict)
    """By worker: its slowness, as the reference has it."""
    translations: int = 0
    """Times that a worker changed its speed and the reference was carried over."""
    look: int = 1
    adjustments: int = 0
    tried: Sample | None = None
    """Once the incumbent runs again: what the trial's steps cost per useful sample."""
    _needed: int = field(default=0)

    @property
    def back(self) -> bool:
        """Whether the incumbent runs again."""
        return self.tried is not None

    def view(self, steps: int) -> TrialView:
        """Return the trial at a glance."""
        needed = self._window() if self.back else max(self._needed, self.spec.min_steps) * self.look
        return TrialView(
            self.plan.global_batch,
            self.plan.accumulation,
            steps,
            min(needed, self.spec.max_steps),
            self.look,
            self.back,
        )

    def restart(self, plan: PlanDraft) -> None:
        """Begin to measure anew, under other shares of the same batch; only before the first look."""
        self.plan = plan
        self.adjustments += 1

    def climb(self, plan: PlanDraft, useful: float, shown: float, expected_gain: float) -> None:
        """Go on with a larger batch after a gain that was ``shown``; only before the first look."""
        self.below = (self.plan, self.useful, self.shown)
        self.plan, self.useful, self.shown, self.adjustments = plan, useful, shown, 0
        told = {"global_batch": plan.global_batch, "accumulation": plan.accumulation, "expected_gain": expected_gain}
        self.choice = self.choice.model_copy(update=told)

    def step_down(self) -> None:
        """Go back to the rung below, for good."""
        if self.below is not None:
            self.plan, self.useful, self.shown = self.below
            self.below, self.at_the_top, self.adjustments = None, True, 0
            told = {"global_batch": self.plan.global_batch, "accumulation": self.plan.accumulation}
            self.choice = self.choice.model_copy(update=told)

    def due(self, steps: Sequence[GroupStep]) -> Look | None:
        """Return the look that the window is ripe for, if any."""
        if self.back:
            if len(steps) < self._window():
                return None
            return Look(2, self._levels().better, final=True, worse=self._levels().worse)
        if self.look > 1 or len(steps) < self.spec.min_steps:
            return None
        costs = self._costs(steps)
        self._needed = steps_needed(self.spec, self.reference, costs, level=self.level)
        if beyond_dependence(self.reference, costs):
            self._needed = min(self._needed, len(steps))
        if len(steps) < self._needed:
            return None
        levels = self._levels()
        return Look(1, levels.better, final=False, worse=levels.worse)

    def judge(self, look: Look, steps: Sequence[GroupStep]) -> Judgement:
        """Take a look. ``open`` at the final one means that it stays open; after an earlier one, go on measuring."""
        levels = Levels(look.level, look.worse)
        self.look = 2
        if self.tried is not None:
            again = self.meter.spent(self.incumbent, steps[: self._window()]) / self.incumbent_useful
            return compare_with_both(self.reference[-again.size :], self.tried, again, levels, self.spec.min_effect)
        judgement = judge_pairs([(self.reference, self._costs(steps))], levels, self.spec.min_effect, look.number)
        if judgement.verdict == "open":
            return judgement
        gap = max(0, steps[0].step - self.reference_last - 1)
        doubtful = explained_by_drift(self.reference, judgement, self.spec.min_effect, gap)
        if not doubtful and not self._doubted(judgement):
            return judgement
        return replace(judgement, verdict="open")

    def translate(self, ratio: float, speeds: Mapping[str, float], incumbent: PlanDraft) -> None:
        """Workers changed their speeds: carry over the reference to steps of ``incumbent`` that take ``ratio`` times.

        What is carried over is a model's word for it, so that the incumbent has to run again before the verdict, unless
        the difference is far beyond what a model may be off.
        """
        self.reference, self.speeds, self.incumbent = self.reference * ratio, speeds, incumbent
        self.translations += 1

    def revalue(self, noise_scale: float, useful: float, incumbent_useful: float) -> None:
        """Let samples count by another noise scale, on both sides alike; only before the first look."""
        self.reference = self.reference * (self.incumbent_useful / incumbent_useful)
        self.noise_scale, self.useful, self.incumbent_useful = noise_scale, useful, incumbent_useful
        self.below = None  # what a step of it is worth is not known any more

    def _doubted(self, judgement: Judgement) -> bool:
        """Return whether what a first look found might be a slow start that is over, or a model's error."""
        effect = 0.0 if judgement.evidence is None else abs(judgement.evidence.effect)
        slow_start = self.wary and judgement.verdict == "better" and not self._twice_better(judgement)
        return slow_start or (self.translations > 0 and effect < SURE)

    def _twice_better(self, judgement: Judgement) -> bool:
        """Return whether the trial climbed and got better with it: one jump of the team's pace makes no two."""
        gain = 0.0 if judgement.evidence is None else judgement.evidence.effect
        return self.shown is not None and (1 + gain) / (1 + self.shown) - 1 >= AGAIN

    def ends(self, steps: Sequence[GroupStep]) -> bool:
        """Return whether the trial's plan has run for long enough, so that it is the incumbent's turn again."""
        return not self.back and self.look > 1 and len(steps) >= min(2 * self._needed, self.spec.max_steps)

    def go_back(self, steps: Sequence[GroupStep]) -> None:
        """The trial's window is complete; what follows are steps of the incumbent."""
        self.tried = self._costs(steps)

    def _window(self) -> int:
        """Return the steps of the incumbent's second window: as many as are compared of the first."""
        return min(2 * self._needed, self.reference.size, self.spec.max_steps)

    def _levels(self) -> Levels:
        """Return the levels of this look; the second has all the information, the first half of it."""
        side = self.spec.alpha / 2 if self.level is None else self.level
        better, worse = look_levels(2 * side, 0.5), look_levels(self.spec.alpha, 0.5)
        number = 1 if self.back else 0
        return Levels(better[number], worse[number])

    def _costs(self, steps: Sequence[GroupStep]) -> Sample:
        return self.meter.spent(self.plan, steps) / self.useful

    def loss_is_worse(self, steps: Sequence[GroupStep]) -> tuple[float, float] | None:
        """Return (p, relative increase) if the trial's loss is shown to be worse, else None."""
        losses = np.array([s.loss for s in steps if s.loss is not None])
        if min(losses.size, self.reference_losses.size) < self.spec.min_steps:
            return None
        block = max(2, block_length(self.reference_losses, losses))
        if min(losses.size, self.reference_losses.size) < MIN_BLOCKS * block:
            return None
        new, old = block_medians(losses, block), block_medians(self.reference_losses, block)
        test = mann_whitney(new, old)
        rise, size = hodges_lehmann(new, old).estimate, abs(float(np.median(old)))
        if test.p_greater > LOSS_ALPHA or rise < max(LOSS_MARGIN * size, LOSS_SPREADS * spread(self.reference_losses)):
            return None
        return test.p_greater, rise / size if size > 0 else math.inf
