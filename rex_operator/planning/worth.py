"""Does a trial pay? What it may win over the rest of the job, less what it costs.

Expected improvement alone would try everything that might be a little better. Snoek et al. (2012) divide it by the
seconds that an evaluation takes; that fits experiments done one after another, whose time is the whole cost. A trial
here is training that goes on: while it runs it is a gain if the candidate is better, a loss only if it is worse. So the
balance is drawn up in seconds of the job instead, with what is won and lost in their places:

    won = P(fits) E[max(0, gain - margin)] (horizon - trial)
    lost = P(fits) E[max(0, -gain)] trial + two changes of plan + P(does not fit) the way back

Both are divided by the horizon, so that the figure is an improvement of the objective over the rest of the job, and
compared with a threshold. (Constants are this project's choice.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rex_operator.planning.curves import Array

if TYPE_CHECKING:
    from rex_operator.planning.surrogate import Belief

HORIZON = 60.0
"""What a trial finds is taken to hold for the length of so many trials; the noise scale and the cluster move on."""
LEAST = 5e-4
"""Improvement over the horizon below which no trial is worth the bother."""
_CHANGE_STEPS = 1.0
"""Steps' worth of time that a change of plan costs."""
_FAILURE_STEPS = 20.0
"""... and running out of memory: the step is lost and the group goes back."""


@dataclass(frozen=True, slots=True)
class Stakes:
    """The seconds that are at stake."""

    step_s: float
    """Seconds per step of the running plan."""
    trial_s: Array
    """(m,) expected seconds of each candidate's trial."""
    horizon_s: float
    """Seconds over which a finding pays."""
    short: bool
    """Whether it is the end of the job that bounds the horizon."""

    @classmethod
    def of(cls, steps: int, step_s: Array, own_s: float, batch: int, remaining: int | None) -> Stakes:
        """Return the stakes of trials of ``steps`` steps.

        ``step_s`` (m,) are the candidates' seconds per step, ``own_s`` and ``batch`` seconds and samples per step of
        what runs, ``remaining`` the samples that the job has left.
        """
        usual = HORIZON * steps * own_s
        left = math.inf if remaining is None else max(0, remaining) / batch * own_s
        return cls(own_s, steps * step_s, min(usual, left), left < usual)


def worth(stakes: Stakes, belief: Belief, fit: Array, margin: float) -> Array:
    """Return what each trial is expected to improve the objective by over the horizon, net and beyond `LEAST`."""
    if stakes.horizon_s <= 0:
        return np.full(fit.shape, -math.inf)
    share = stakes.trial_s / stakes.horizon_s
    step = stakes.step_s / stakes.horizon_s
    won = fit * belief.improvement(margin) * np.maximum(0.0, 1.0 - share)
    lost = fit * belief.loss() * share + 2 * _CHANGE_STEPS * step + (1.0 - fit) * _FAILURE_STEPS * step
    return np.asarray(won - lost - LEAST)
