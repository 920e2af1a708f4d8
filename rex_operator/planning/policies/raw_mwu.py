"""The obvious rank test as a verdict, to show what blocks, margin and two looks are for.

Everything but the verdict is REX's: a trial is looked at once, and kept if a plain Mann-Whitney test calls it
significantly better. On steps that depend on their neighbours, or drift, that test finds differences where there are
none, and among many steps it finds ones that do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from rex_operator.planning.policies.base import About
from rex_operator.planning.policies.rex import Rex
from rex_operator.planning.statistics import hodges_lehmann, mann_whitney, usable
from rex_operator.planning.trial import Look, Trial
from rex_operator.planning.types import Evidence
from rex_operator.planning.verdict import Judgement, Verdict
from rex_operator.planning.windows import GroupStep


class RawMwu(Rex):
    """REX's shares and search; verdicts by one two-sided test on the raw times."""

    about: ClassVar[About] = About(
        name="raw-mwu",
        title="Raw Mann-Whitney",
        reference="Mann & Whitney, Annals of Mathematical Statistics 18(1), 1947",
        rule=(
            "As rex, but a trial is judged once, after minSteps steps, by a two-sided rank test of its raw times at"
            " alpha; without blocks, without a margin."
        ),
        ours="An arm of the ablation; nobody published it as a planner.",
        changes=("shares", "batch"),
        exempt={"keeps-batch-on-noise": "it has no margin and takes correlated steps for independent ones"},
    )

    def due(self, trial: Trial, steps: Sequence[GroupStep]) -> Look | None:
        """Return the only look, once ``minSteps`` steps are there."""
        return Look(1, trial.spec.alpha / 2, final=True) if len(steps) >= trial.spec.min_steps else None

    def judge(self, trial: Trial, look: Look, steps: Sequence[GroupStep]) -> Judgement:
        """Compare what useful samples cost over ``minSteps`` steps of either plan."""
        size = trial.spec.min_steps
        new, bad_new = usable(trial.meter.spent(trial.plan, steps[:size]) / trial.useful)
        old, bad_old = usable(trial.reference[-size:])
        removed = bad_new + bad_old
        if not new.size or not old.size:
            return Judgement("open", None, removed)
        new, old = np.log(new), np.log(old)
        test, shift = mann_whitney(new, old), hodges_lehmann(new, old)
        verdict: Verdict = "open"
        if test.p_less < look.level:
            verdict = "better"
        elif test.p_greater < look.level:
            verdict = "worse"
        low, gain, high = (math.expm1(min(-x, 50.0)) for x in (shift.high, shift.estimate, shift.low))
        evidence = Evidence(
            p_better=test.p_less,
            p_worse=test.p_greater,
            effect=gain,
            interval=(low, high),
            a12=test.a12,
            n_reference=old.size,
            n_trial=new.size,
            look=look.number,
            alpha=look.level,
        )
        return Judgement(verdict, evidence, removed)
