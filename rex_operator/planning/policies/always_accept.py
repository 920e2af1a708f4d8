"""What a search without a verdict is worth: its proposals are taken at their word.

Everything but the verdict is REX's. The trial's first steady steps end it, kept; only the planner's own vetoes (memory,
a diverged loss) are left between a wrong prediction and the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rex_operator.planning.policies.base import About
from rex_operator.planning.policies.rex import Rex
from rex_operator.planning.trial import Look, Trial
from rex_operator.planning.verdict import Judgement
from rex_operator.planning.windows import GroupStep


class AlwaysAccept(Rex):
    """REX's shares and search; whatever is tried is kept."""

    about: ClassVar[About] = About(
        name="always-accept",
        title="Always accept",
        reference="none; an arm of the ablation",
        rule="As rex, but a batch that the search proposes is kept without a test.",
        ours="All of it.",
        changes=("shares", "batch"),
        exempt={"keeps-batch-on-noise": "whatever is tried is kept"},
    )

    def due(self, trial: Trial, steps: Sequence[GroupStep]) -> Look | None:
        """Return the only look, at the first steps that count: until then nobody knows whether the shares are right."""
        return Look(1, 1.0, final=True) if steps else None

    def judge(self, trial: Trial, look: Look, steps: Sequence[GroupStep]) -> Judgement:
        """Keep it."""
        return Judgement("better", None)
