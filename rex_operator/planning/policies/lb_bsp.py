"""LB-BSP: semi-dynamic load balancing, only at iteration barriers, by predicted speed or by small moves.

On CPUs speed wanders with neighbours' load, so the next speed is predicted and shares are proportional to it. On GPUs
speed is steady but time is a line with a floor, so shares are moved from the slowest to the fastest worker.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from rex_operator.planning.curves import Array
from rex_operator.planning.policies.base import About, Rebalance, Scene
from rex_operator.planning.policies.following import FEWEST, Following, mean_times, running_shares
from rex_operator.planning.policies.lines import Lines
from rex_operator.planning.split import WorkerModel

STEPS = 10
"""Steps between two decisions, and that a GPU's time is averaged over. Ours."""
BALANCED = 0.05
"""Relative gap between slowest and fastest below which nothing moves. Ours."""
LAGS, MEMORY = 3, 60
"""Past speeds that the predictor goes by, and the steps that it is fitted on. Ours."""
_RIDGE = 1e-3


def predicted_speed(speeds: Array) -> float:
    """Return the next value of one worker's series of speeds (samples per second, positive).

    An autoregression of `LAGS` past values by ridge regression about the mean, bounded by what was seen; the
    published predictor (NARX) also takes the host's use of CPU and memory, which no worker here reports.
    """
    series = speeds[-MEMORY:]
    mean = float(series.mean())
    if series.size < 3 * LAGS:
        return mean
    relative = series / mean - 1
    past = np.column_stack([relative[LAGS - k - 1 : -k - 1] for k in range(LAGS)])
    pull = (float((relative**2).sum()) + 1e-12) * _RIDGE * np.eye(LAGS)
    weights = np.linalg.solve(past.T @ past + pull, past.T @ relative[LAGS:])
    ahead = mean * (1 + float(weights @ relative[: -LAGS - 1 : -1]))
    return float(np.clip(ahead, series.min(), series.max()))


def evened(models: list[WorkerModel], shares: Array, accumulation: int, floors: Array, least: int) -> Array:
    """Return the shares after moves from the slowest to the fastest worker, until they are balanced or none helps.

    A move takes as much as closes the gap by the two workers' lines, at least one sample. ``floors`` are the seconds
    below which a worker's time does not fall, ``least`` the samples that it keeps.
    """
    now = shares.copy()
    caps = np.array([np.inf if m.cap is None else m.cap * accumulation for m in models])

    def times() -> Array:
        raw = np.array([float(m.curve.time(b / accumulation)) for m, b in zip(models, now, strict=True)])
        floored: Array = np.maximum(raw, floors) * accumulation
        return floored

    for _ in range(16 * len(models)):
        present = times()
        room = np.where(now < caps, present, np.inf)
        slow, fast = int(present.argmax()), int(room.argmin())
        gap = float(present[slow] - room[fast])
        if slow == fast or not gap > 0.1 * BALANCED * present[slow]:
            break
        per_sample = sum(m.curve.seconds[0] * m.curve.below / m.curve.sizes[0] for m in (models[slow], models[fast]))
        delta = min(max(1.0, float(np.floor(gap / per_sample))), now[slow] - least, caps[fast] - now[fast])
        if delta < 1:
            break
        now[slow] -= delta
        now[fast] += delta
        if times().max() >= present.max():
            now[slow] += delta
            now[fast] -= delta
            break
    return now


class LbBsp(Following):
    """Load-balanced bulk synchronous parallel training."""

    about: ClassVar[About] = About(
        name="lb-bsp",
        title="LB-BSP",
        reference="Chen, Weng, Wang, Li, Li: Semi-dynamic load balancing, ACM SoCC 2020",
        rule=(
            "At iteration barriers. CPUs: shares proportional to the speed that an autoregression predicts. GPUs: time"
            " is a line with a floor, and samples move from the slowest to the fastest worker."
        ),
        ours=(
            "Lines come from the sizes that ran, not from a profile beforehand; all moves of one decision are made at"
            " once, sized by the lines; the predictor has no CPU and memory use to go by; a decision every ten steps; a"
            " gap below 5 % stays. A team is taken for CPUs when all its devices are called cpu."
        ),
        changes=("shares",),
    )

    def __init__(self) -> None:
        super().__init__()
        self._lines = Lines()
        self._looked = -STEPS

    def rebalance(self, scene: Scene) -> Rebalance | None:
        """Return the next shares, every ten steps."""
        plan, times = scene.running, mean_times(scene.steps[-STEPS:])
        if plan is None or times is None or len(scene.steps) < FEWEST:
            return None
        newest = scene.steps[-1].step
        if scene.change is None and 0 <= newest - self._looked < STEPS:
            return None
        self._looked = newest
        if times.max() <= (1 + BALANCED) * times.min():
            return None
        shares = running_shares(scene)
        if all(w.device.startswith("cpu") for w in scene.workers):
            series = shares / np.maximum([s.compute_s for s in scene.steps], 1e-9)
            speeds = np.array([predicted_speed(column) for column in series.T])
            wanted = plan.global_batch * speeds / speeds.sum()
        else:
            models = self._lines.models(scene, shares / plan.accumulation, times / plan.accumulation)
            wanted = evened(models, shares, plan.accumulation, self._lines.floors(scene), 1)
        return self.move(scene, dict(zip(scene.names, wanted.tolist(), strict=True)), times)
