"""A candidate plan on probation.

The reference is the window directly before, so that slow drift hits both alike; the figure compared is the time per
useful sample, t / (B x EFF(B)), with the efficiency frozen at what was known before, so that the noise scale's own
wandering cannot decide. (Where energy is the objective it is joules instead of time, the devices' power frozen alike.)
Two looks are planned; what would make the numbers meaningless (a diverged loss, a clearly worse loss, memory) vetoes
before any look.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rex_operator.api.spec import Validation
from rex_operator.planning.objective import Meter
from rex_operator.planning.statistics import Sample, block_medians, hodges_lehmann, mann_whitney, spread, usable
from rex_operator.planning.types import CandidateSummary, PlanDraft, TrialView
from rex_operator.planning.verdict import MIN_BLOCKS, Judgement, block_length, judge, look_levels
from rex_operator.planning.windows import GroupStep

LOSS_ALPHA = 0.01
"""One-sided level at which a worse loss vetoes ..."""
LOSS_MARGIN = 0.05
"""... if it is also worse by this share: a batch of another size has another spread of losses."""
LOSS_SPREADS = 0.5
"""... and by this much of the spread of single steps: near its floor a loss doubles and halves for no reason."""
MAX_ADJUSTMENTS = 2
"""Times that the shares may be corrected inside a trial before it is judged: its curves are extrapolated at first."""


@dataclass(frozen=True, slots=True)
class Look:
    """One of the planned looks at a trial."""

    number: int
    level: float
    """One-sided."""
    final: bool


def steps_needed(spec: Validation, *series: Sample) -> int:
    """Return the steps that give enough blocks for the measured dependence of the times, within the spec's bounds."""
    block = block_length(*(np.log(usable(times)[0]) for times in series))
    return min(max(spec.min_steps, (MIN_BLOCKS + 2) * block), spec.max_steps)


@dataclass(slots=True)
class Trial:
    """A trial that runs; ``plan`` is its present plan."""

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
    look: int = 1
    adjustments: int = 0
    _needed: int = field(default=0)

    def view(self, steps: int) -> TrialView:
        """Return the trial at a glance."""
        needed = max(self._needed, self.spec.min_steps) * self.look
        return TrialView(
            self.plan.global_batch, self.plan.accumulation, steps, min(needed, self.spec.max_steps), self.look
        )

    def restart(self, plan: PlanDraft) -> None:
        """Begin to measure anew, under other shares of the same batch."""
        self.plan = plan
        self.adjustments += 1
        self.look = 1

    def due(self, steps: Sequence[GroupStep]) -> Look | None:
        """Return the look that the trial's window is ripe for, if any."""
        if len(steps) < self.spec.min_steps:
            return None
        self._needed = steps_needed(self.spec, self.reference, self._times(steps))
        first = min(self._needed, self.spec.max_steps)
        final = min(2 * first, self.spec.max_steps)
        if len(steps) < (first if self.look == 1 else final):
            return None
        levels = look_levels(self.spec.alpha, first / final)
        return Look(self.look, levels[self.look - 1], final=self.look == 2 or final == first)

    def judge(self, look: Look, steps: Sequence[GroupStep]) -> Judgement:
        """Take a look. ``open`` at the final one means that it stays open; after an earlier one, go on measuring."""
        self.look = 2
        return judge(self.reference, self._times(steps), look.level, self.spec.min_effect, look.number)

    def _times(self, steps: Sequence[GroupStep]) -> Sample:
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
