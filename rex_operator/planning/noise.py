"""How large may the batch be before its samples are wasted? The gradient noise scale, and what follows from it.

The noise scale phi = tr(Sigma) / |G|^2 (McCandlish et al. 2018) is a ratio of two noisy quantities, measured by workers
whose local batches differ. The textbook two-batch formula is badly biased there (by 2x and with negative |G|^2 on
100/60/30/10), so the pooled one-way analysis-of-variance estimator is used; and as the ratio of unbiased estimates is
biased, numerator and denominator are averaged apart over the recent third of the run and divided last.

Such an average lags behind a noise scale that grows. The average of the averages lags twice as far; so where the two
are clearly apart, the scale is carried on by what lies between them (Brown's double smoothing, of the logarithm, which
is exact for steady growth and for powers of time alike). The clearer, the farther; nothing while nothing is clear.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rex_operator.planning.statistics import Sample
from rex_operator.planning.types import Record

LONGEST_MEMORY = 300.0
"""Steps that the moving averages remember at most; at the start it is the last third, for gradients shrink fast."""
SHORTEST_MEMORY = 20.0
_UNCLEAR = 2.5
"""Standard errors of the difference between the averages up to which it counts for nothing."""
ENOUGH_STEPS = 30
"""Usable steps before the noise scale is told."""
_SPIKE = 5.0
"""A step's estimate is cut to this many times the average size: one exploding gradient must not rule 300 steps."""
_ACCIDENT = 1e100
"""A squared norm above this is no estimate; its square would not be finite."""
_INTERVAL = 1.645
"""Standard errors either way that hold the truth in 90 % of the cases."""
LARGEST = 1e9
"""Largest noise scale that is told, in samples."""


def pooled_estimate(local_batches: Sample, local_sq: Sample, global_sq: float) -> tuple[float, float] | None:
    """Return unbiased estimates (tr Sigma, |G|^2) from one step; None when it cannot say.

    ``local_sq`` are the |g_i|^2 of the workers' own mean gradients over ``local_batches`` samples (NaN: unknown),
    ``global_sq`` is |g|^2 of g = sum (b_i/B) g_i. Either estimate may be negative: that is what unbiased costs.
    """
    used = local_batches > 0
    batches, squares = (local_batches, local_sq) if used.all() else (local_batches[used], local_sq[used])
    workers = batches.size
    if workers < 2 or not (0 <= global_sq <= _ACCIDENT and squares.min() >= 0 and squares.max() <= _ACCIDENT):
        return None  # NaN is in no range either
    total = float(batches.sum())
    trace = (float(batches @ squares) - total * global_sq) / (workers - 1)
    signal = global_sq - trace / total
    return (trace, signal) if math.isfinite(trace) and math.isfinite(signal) else None


def nested_estimate(part: int, part_sq: float, batch: float, batch_sq: float) -> tuple[float, float] | None:
    """Return unbiased estimates (tr Sigma, |G|^2) from one step of a worker alone; None when it cannot say.

    ``part_sq`` is |g|^2 over the ``part`` samples of its first pass, ``batch_sq`` over all ``batch`` of the step: the
    two batches of McCandlish et al. (2018), one within the other.
    """
    if not 0 < part < batch or not (0 <= part_sq <= _ACCIDENT and 0 <= batch_sq <= _ACCIDENT):
        return None
    trace = (part_sq - batch_sq) / (1 / part - 1 / batch)
    return trace, (batch * batch_sq - part * part_sq) / (batch - part)


class NoiseState(Record):
    """What the estimator remembers."""

    weight: float = 0.0
    trace: float = 0.0
    signal: float = 0.0
    trace_sq: float = 0.0
    signal_sq: float = 0.0
    cross: float = 0.0
    weight_sq: float = 0.0
    late_trace: float = 0.0
    """Of the average trace after each step, as `trace` is of the steps' own ..."""
    late_signal: float = 0.0
    """... and of the average signal."""
    steps: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class NoiseScale:
    """The noise scale in samples and its rough 90 % interval; ``high`` is infinite when only a floor is known."""

    value: float
    low: float
    high: float


class NoiseEstimator:
    """Averages the steps' estimates. Feed each group step once."""

    def __init__(self, saved: NoiseState | None = None) -> None:
        self._state = (saved or NoiseState()).model_dump()
        self._told: NoiseScale | None = None
        self._fresh = False
        """Whether `_told` is of all steps so far."""

    def observe(
        self, local_batches: Sample, local_sq: Sample, global_sq: float, first_pass: tuple[int, float] | None = None
    ) -> None:
        """Take in one group step; unusable ones are counted.

        ``first_pass`` are the samples and |g|^2 of the first pass of a worker that is alone.
        """
        estimate = pooled_estimate(local_batches, local_sq, global_sq)
        if estimate is None and first_pass is not None and local_batches.size == 1:
            estimate = nested_estimate(*first_pass, float(local_batches[0]), global_sq)
        s = self._state
        if estimate is None:
            s["skipped"] += 1
            return
        trace, signal = estimate
        if s["steps"] >= SHORTEST_MEMORY:
            trace = _cut(trace, _SPIKE * math.sqrt(s["trace_sq"] / s["weight"]))
            signal = _cut(signal, _SPIKE * math.sqrt(s["signal_sq"] / s["weight"]))
        self._fresh = False
        s["steps"] += 1
        keep = 1 - 1 / min(max(s["steps"] / 3, SHORTEST_MEMORY), LONGEST_MEMORY)
        new = {
            "weight": 1.0,
            "trace": trace,
            "signal": signal,
            "trace_sq": trace * trace,
            "signal_sq": signal * signal,
            "cross": trace * signal,
        }
        for name, value in new.items():
            s[name] = keep * s[name] + value
        s["weight_sq"] = keep * keep * s["weight_sq"] + 1.0
        for late, name in (("late_trace", "trace"), ("late_signal", "signal")):
            s[late] = keep * s[late] + s[name] / s["weight"]

    @property
    def hopeless(self) -> bool:
        """Whether many steps came by and none could be used: one worker alone, or no gradient norms reported."""
        return bool(self._state["steps"] == 0 and self._state["skipped"] >= 4 * ENOUGH_STEPS)

    @property
    def vague(self) -> bool:
        """Whether more steps are likely to tell more: so far there is a floor at most."""
        scale = self.scale()
        return (scale is None or math.isinf(scale.high)) and self._state["steps"] < LONGEST_MEMORY

    def state(self) -> NoiseState:
        """Return what is to be kept."""
        return NoiseState(**self._state)

    def scale(self) -> NoiseScale | None:
        """Return the noise scale; None until `ENOUGH_STEPS` usable steps were seen.

        A signal lost in its own noise (or negative) counts as one standard error: phi is then a floor, not a guess.
        """
        if not self._fresh:
            self._told, self._fresh = self._scale(), True
        return self._told

    def _scale(self) -> NoiseScale | None:
        s = self._state
        if s["steps"] < ENOUGH_STEPS:
            return None
        w = s["weight"]
        trace, signal = s["trace"] / w, s["signal"] / w
        effective = w * w / s["weight_sq"]
        var_trace = max(0.0, s["trace_sq"] / w - trace * trace) / effective
        var_signal = max(0.0, s["signal_sq"] / w - signal * signal) / effective
        covariance = (s["cross"] / w - trace * signal) / effective
        top, bottom = max(trace, 0.0), max(signal, math.sqrt(var_signal))
        if bottom <= 0:
            return None
        value = min(top / bottom, LARGEST)
        # delta method on trace - value * signal, the numerator of the ratio's error
        error = _INTERVAL * math.sqrt(max(0.0, var_trace - 2 * value * covariance + value * value * var_signal))
        shaky = _INTERVAL * math.sqrt(var_signal)
        low = max(0.0, top - error) / bottom
        high = (top + error) / bottom if signal > 2 * shaky else math.inf
        told = NoiseScale(value, min(low, value), max(high, value))
        return self._carried_on(told, error / top) if 0 < value < LARGEST and math.isfinite(high) else told

    def _carried_on(self, told: NoiseScale, interval: float) -> NoiseScale:
        """Return what the scale is by now, if it has clearly grown or shrunk; ``interval`` is that of its logarithm.

        The difference between both averages has half the variance of the first, and as much in common with it.
        """
        late_trace, late_signal = self._state["late_trace"], self._state["late_signal"]
        if min(late_trace, late_signal) <= 0:
            return told
        ahead = math.log(told.value * late_signal / late_trace)
        unclear = _UNCLEAR * interval / _INTERVAL / math.sqrt(2)
        part = 1 - (unclear / ahead) ** 2 if abs(ahead) > unclear else 0.0
        factor, wider = math.exp(part * ahead), math.sqrt(1 + part + part**2 / 2)
        value = min(factor * told.value, LARGEST)
        low, high = (value + factor * wider * (end - told.value) for end in (told.low, told.high))
        return NoiseScale(value, max(0.0, low), max(high, value))


def _cut(value: float, bound: float) -> float:
    return max(-bound, min(bound, value)) if bound > 0 else value


def efficiency(noise_scale: float, batch: float, initial: int) -> float:
    """Return the statistical efficiency of ``batch`` against ``initial``: (phi + m0) / (phi + B), Pollux (OSDI'21).

    Above 1 below the initial batch. phi and batches are in samples.
    """
    return (noise_scale + initial) / (noise_scale + batch)
