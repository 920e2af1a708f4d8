"""What becomes of the learning rate when the batch is another one than the script's rate was meant for.

A rate that is scaled step by step from what ran before ends somewhere else after 256, 512, 256, and one that follows
each new estimate of the noise scale trembles with it. So the factor is a function of four things only: the rule, the
present batch, the batch that the rate was meant for, and a noise scale that is held until the measurement says that
it is another one and the rate would differ noticeably. It is decided with a plan and travels in it, the same for all
workers.

The rules: AdaScale's gain (Johnson et al. 2020), linear (Goyal et al. 2017), square root, and LEGW (You et al. 2019),
which is the square root with a warm-up as many times longer as the batch is larger. For an optimiser that divides by
the gradient's own size (Adam and its kin) AdaScale takes the gain's square root (AdaptDL's AdamScale; Malladi et al.
2022): such an optimiser already makes its step larger as averaging makes the gradient smaller. Who names another rule
gets that rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from rex_operator.planning.noise import NoiseScale, efficiency
from rex_worker.protocol import MAX_SAMPLES

Scaling = Literal["adascale", "linear", "sqrt", "legw", "none"]

NOTICEABLE = 1.10
"""Two rates closer than this ratio are taken for the same."""


def learning_rate_factor(
    scaling: Scaling, batch: int, initial: int, noise_scale: float | None, *, adaptive: bool = False
) -> float:
    """Return what the base learning rate is multiplied with at ``batch``; exactly 1 at ``initial``.

    Args:
        scaling: The rule.
        batch: Samples of the present global batch.
        initial: Samples of the batch that the base rate is meant for.
        noise_scale: Gradient noise scale in samples. Unknown (None), AdaScale takes the cautious end, min(1, scale).
        adaptive: The optimiser divides by the gradient's own size.
    """
    scale = batch / initial
    match scaling:
        case "none":
            return 1.0
        case "sqrt" | "legw":
            return math.sqrt(scale)
        case "linear":
            return scale
        case "adascale":
            gain = min(1.0, scale) if noise_scale is None else scale * efficiency(noise_scale, batch, initial)
            return math.sqrt(gain) if adaptive else gain


def warmup_length(scaling: Scaling, base: int, batch: int, initial: int) -> int:
    """Return over how many samples of the job the rate climbs from 0 to its full height under a plan.

    ``base`` samples, whatever the batch; with LEGW as many times more as the batch is larger than ``initial``.
    """
    return min(round(base * batch / initial), MAX_SAMPLES) if scaling == "legw" else base


def settled(held: float | None, measured: NoiseScale | None, factor: Callable[[float], float]) -> float | None:
    """Return the noise scale to go by, given the one ``held`` so far and what is ``measured`` now.

    The held one stays while the measurement's 90 % interval contains it, and while ``factor`` (of a noise scale, at the
    batch in question) would change by less than `NOTICEABLE`.
    """
    if measured is None:
        return held
    if held is None:
        return measured.value
    if measured.low <= held <= measured.high or not noticeable(factor(held), factor(measured.value)):
        return held
    return measured.value


def noticeable(before: float, after: float) -> bool:
    """Return whether two factors differ enough to be worth a change of rate."""
    return max(before, after) >= NOTICEABLE * min(before, after)
