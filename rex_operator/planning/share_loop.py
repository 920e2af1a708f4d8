"""The fast inner loop of the shares: has a worker's speed jumped within the last few steps?

Eight independent steps that show a new speed (`straggler.find_change`) are proof, and too slow for a jump that nobody
can mistake: with one of four workers twice as slow, each of those steps is lost for a third. So every step's compute
time is held against what the worker's model says for its share, relative to the others' deviation, in units of the
worker's own spread over time. A few steps in a row far beyond both are an event, also in a plan's first steps, where
there is no past to compare with yet. An event tells the new speed; the shares follow from the curves at once.

Event-triggered, with z over time per worker: that much of SADDLE's loop (J. Systems Architecture 168:103573, 2025) is
public. Where its controller feels its way (PID on the shares), the curves lead in one move; ADR 65 has the measurement.
All constants are ours.

A speed that drifts jumps nowhere, and a mean over all steps of a plan lags behind it; so where the last ten steps have
clearly left what the models were adjusted to, only these count for the models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rex_operator.planning.split import WorkerModel
from rex_operator.planning.statistics import Sample, medians, midmeans, of_others, smallest_p, spread
from rex_operator.planning.straggler import RECENT, SpeedChange
from rex_operator.planning.windows import GroupStep

RUN = 3
"""Steps in a row that a jump takes to be believed ..."""
BRIEF = 12
"""... and twice as many after one that was over again within so many steps: bursts are not worth a move."""
LASTING = 50
"""A jump that lasted so many steps makes the loop trust the next one sooner again."""
UNFAMILIAR = 1.3
"""Least jump that counts in a plan's first steps, where the curve may be wrong at the new share; and more by the factor
between that share and the nearest measured one: no curve is off by more than the move itself."""
CLEAR = 6.0
"""Standard deviations of single steps that every step of a jump lies beyond; so far that dependence does not matter."""
MEMORY = 100
"""Earlier steps that spreads are pooled over with a new window's, at most ..."""
FEWEST = 20
"""... and how many there must be; few ones widen the bound, for they understate."""
DRIFT_STEPS = 10
"""Steps whose mean shows a drift, both halves of them in the same direction (a burst is in one) ..."""
DRIFT = 1.04
"""... of at least this factor since the models were adjusted ..."""
DRIFT_CLEAR = 4.0
"""... and so many standard errors, dependence counted in: the question is asked again every few steps."""
COARSE = 0.01
"""Least standard deviation of the log: clocks are coarse, and identical values are not certainty."""
ALONG = 1.05
"""Workers that are off their models by this factor when another one jumps are known anew as well."""
SKIPPED = 2
"""First steps of a plan that say nothing."""


@dataclass(frozen=True, slots=True)
class Jump:
    """What happened, and who is not what its model says any more (others may have moved along)."""

    change: SpeedChange
    """The largest jump."""
    workers: tuple[int, ...]
    """Indices of all workers that are to be known anew."""


class ShareLoop:
    """Finds jumps; remembers how much each worker's times spread, and how long jumps last."""

    def __init__(self) -> None:
        self._variances: dict[str, float] = {}
        """Of the log of a worker's time relative to the others'."""
        self._seen = 0
        """Steps that they were taken from."""
        self._run = RUN
        self._last: tuple[str, int, bool] | None = None
        """Worker, step and direction (slower?) of the last jump."""

    def learn(self, names: Sequence[str], logs: Sample) -> None:
        """Take the workers' spreads from the logs of compute times of a steady window (steps x workers)."""
        relative = logs - of_others(logs) if logs.shape[1] > 1 else logs
        fresh = {name: spread(column) ** 2 for name, column in zip(names, relative.T, strict=True)}
        old = min(self._seen, MEMORY) if fresh.keys() <= self._variances.keys() else 0
        self._seen = old + len(logs)
        self._variances = {
            name: (old * self._variances.get(name, 0.0) + len(logs) * value) / self._seen
            for name, value in fresh.items()
        }

    def look(self, steps: Sequence[GroupStep], names: Sequence[str], expected: Sample, least: Sample) -> Jump | None:
        """Return a jump of one worker's speed that goes on up to the last of ``steps``.

        ``expected`` are the workers' compute seconds by their models, in the order of ``names``; ``least`` the logs of
        the smallest jumps that count.
        """
        if len(names) < 2 or len(steps) < self._run or self._seen < FEWEST or not self._variances.keys() >= {*names}:
            return None
        latest = steps[-RECENT * 2 :]
        own = np.log(np.maximum([s.compute_s for s in latest], 1e-9)) - np.log(expected)
        relative = own - of_others(own)
        deviation = np.sqrt([self._variances[name] for name in names])
        deviation = np.maximum(deviation, COARSE) * (1 + 3 / math.sqrt(self._seen))
        bounds = np.maximum(least, CLEAR * deviation)
        beyond = np.where(np.abs(relative) > bounds, np.sign(relative), 0.0)
        jumped = np.abs(beyond[-self._run :].sum(axis=0)) == self._run
        if not jumped.any():
            return None
        # Of two workers each has changed against the other: the one that left its own past is meant.
        worker = int(np.argmax(np.where(jumped, np.abs(relative[-1]) + 1e-3 * np.abs(own[-1]), -1.0)))
        side = beyond[-1, worker]
        other = np.flatnonzero(beyond[:, worker] != side)
        begin = int(other[-1]) + 1 if other.size else 0
        jump = float(np.median(relative[begin:, worker]))
        found = SpeedChange(worker, math.exp(jump), smallest_p(len(latest) - begin, self._seen), latest[begin].step)
        moved = np.abs(np.median(own[-self._run :], axis=0)) > np.maximum(math.log(ALONG), CLEAR / 2 * deviation)
        self._note(names[worker], found.step, jump > 0)
        return Jump(found, tuple(np.flatnonzero(moved | jumped).tolist()))

    def drifting(self, steps: Sequence[GroupStep], names: Sequence[str], expected: Sample, tau: float) -> bool:
        """Return whether a worker's speed is no longer what its model was adjusted to, by the last of ``steps``.

        ``tau`` is the autocorrelation time of the workers' times in steps.
        """
        if len(names) < 2 or len(steps) < DRIFT_STEPS or self._seen < FEWEST or not self._variances.keys() >= {*names}:
            return False
        own = np.log(np.maximum([s.compute_s for s in steps[-DRIFT_STEPS:]], 1e-9)) - np.log(expected)
        relative = own - of_others(own)
        middle = midmeans(relative)
        older, newer = (medians(half) for half in np.split(relative, 2))
        lasting = np.minimum(older * np.sign(middle), newer * np.sign(middle)) > math.log(DRIFT) / 2
        deviation = np.maximum(np.sqrt([self._variances[name] for name in names]), COARSE)
        error = deviation * math.sqrt(tau / DRIFT_STEPS) * (1 + 3 / math.sqrt(self._seen))
        clear = np.abs(middle) > np.maximum(math.log(DRIFT), DRIFT_CLEAR * error)
        return bool((clear & lasting).any())

    def _note(self, worker: str, step: int, slower: bool) -> None:
        """Learn from a jump whether the last one was worth an answer."""
        if self._last is not None:
            name, before, direction = self._last
            if name == worker and direction != slower and step - before <= BRIEF:
                self._run = min(2 * self._run, RECENT)
            elif step - before >= LASTING:
                self._run = max(self._run // 2, RUN)
        self._last = worker, step, slower


def doubt(models: Sequence[WorkerModel], micro_batches: Sample) -> Sample:
    """Return by how much (log) each worker's first times at a new share may be off its model without any jump."""
    off = [
        min(abs(math.log(size / known)) for known in model.curve.sizes)
        for model, size in zip(models, micro_batches.tolist(), strict=True)
    ]
    own = np.array(off)
    allowed: Sample = math.log(UNFAMILIAR) + own + of_others(own[None, :])[0]
    return allowed
