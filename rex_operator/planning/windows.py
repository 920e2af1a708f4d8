"""From the reports of single workers to steps of the group, and from those to windows that may be judged.

Reports arrive late, twice, out of order or not at all; workers die and come back under the same name; plans change
while reports are on their way. A window holds only steps that every worker of one plan, in one life, has reported, each
once, and knows which of them count: not the marked ones (checkpoint, evaluation), not the short last step of an epoch,
not the warm-up, not what lies before a change of a worker's speed. Everything else is counted by reason and set aside.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rex_operator.planning.statistics import Sample
from rex_operator.planning.types import WorkerInfo
from rex_operator.planning.warmup import settled_from
from rex_worker.protocol import StepReport

_PENDING_REPORTS = 16_384
_PENDING_STEPS = 64
_EARLY_REPORTS = 4_096
_STALE_S = 10.0
_STALE_STEPS = 10.0


@dataclass(frozen=True, slots=True)
class GroupStep:
    """One step as the whole group lived it; arrays are in the order of the window's workers."""

    step: int
    samples: int
    step_s: float
    """Seconds of the slowest worker, from step end to step end."""
    compute_s: Sample
    wait_s: Sample
    comm_s: Sample
    """NaN where a worker did not say; it is part of ``wait_s`` then."""
    peak_bytes: Sample
    """0 where a worker does not know."""
    local_batches: Sample
    local_grad_sq: Sample
    """NaN where a worker did not say."""
    global_grad_sq: float
    loss: float | None
    """Mean over the samples of the group; None when unknown or diverged."""
    diverged: bool
    counts: bool
    """Neither marked nor of another size than planned: fit for timing."""
    epoch: int = 0
    """Passes over the data before this step's."""
    first_pass: int = 0
    """Samples of the first pass of one worker alone, if it told of it; else 0."""
    first_pass_sq: float = float("nan")


class Window:
    """The group steps of one running plan, bounded; the oldest fall out.

    Its versions from ``oldest`` to ``version`` differ in nothing that takes time (the learning rate).
    """

    def __init__(
        self, version: int, generation: int, shares: Mapping[str, int], first: int, warmup_steps: int, length: int
    ) -> None:
        self.version = self.oldest = version
        self.generation = generation
        self.shares = dict(shares)
        self.workers = tuple(shares)
        self.first = first
        self._warmup_steps = warmup_steps
        self._length = length
        self.diverged = False
        """Whether any step had a loss that was not finite."""
        self._steps: dict[int, GroupStep] = {}
        self._order: list[int] = []
        """Of all complete steps; ascending."""
        self._timed: list[GroupStep] = []
        """Those that are fit for timing; in their order."""
        self._pending: dict[int, dict[str, StepReport]] = {}
        self._pending_bound = max(_PENDING_STEPS, _PENDING_REPORTS // len(self.workers))
        self._horizon = 0
        self.since = first
        """Steps before this one do not count any more."""
        self._settled: int | None = None
        """First step after the warm-up, once that is known."""
        self._overflowed = False
        """The first steps are no longer here."""
        self._ripe: list[GroupStep] | None = None
        self._counted: list[GroupStep] | None = None

    def add(self, worker_id: str, report: StepReport, set_aside: Counter[str]) -> GroupStep | None:
        """Take one report; return the group step that it completes."""
        step = report.step
        if step in self._steps:
            set_aside["duplicate"] += 1
            return None
        if step <= self._horizon:
            set_aside["late"] += 1
            return None
        reports = self._pending.setdefault(step, {})
        if worker_id in reports:
            set_aside["duplicate"] += 1
            return None
        reports[worker_id] = report
        if len(reports) < len(self.workers):
            if len(self._pending) > self._pending_bound:
                set_aside["incomplete"] += len(self._pending.pop(min(self._pending)))
            return None
        del self._pending[step]
        whole = self._assemble(step, reports)
        if not whole.counts:
            set_aside["marked or short"] += len(reports)
        self._keep(whole)
        return whole

    def _keep(self, whole: GroupStep) -> None:
        self._steps[whole.step] = whole
        self.diverged = self.diverged or whole.diverged
        if self._order and whole.step < self._order[-1] and not self._overflowed:
            self._settled = None  # it came late, and may lie among those that told where the window settles
        insort(self._order, whole.step)
        if whole.counts:
            insort(self._timed, whole, key=_number)
        if len(self._order) > self._length:
            self._settle()  # while the steps that tell it are still here
            self._overflowed = True
            oldest = self._order.pop(0)
            del self._steps[oldest]
            if self._timed and self._timed[0].step == oldest:
                del self._timed[0]
            self._horizon = max(self._horizon, oldest)
        self._ripe = self._counted = None

    def _assemble(self, step: int, reports: Mapping[str, StepReport]) -> GroupStep:
        ordered = [reports[worker] for worker in self.workers]
        columns = np.array(
            [
                (
                    r.compute_s,
                    r.wait_s,
                    np.nan if r.comm_s is None else r.comm_s,
                    r.peak_bytes,
                    r.local_batch,
                    np.nan if r.local_grad_sq is None else r.local_grad_sq,
                )
                for r in ordered
            ]
        )
        compute_s, wait_s, comm_s, peak_bytes, local_batches, local_grad_sq = columns.T.copy()
        lossy = [(r.local_batch, r.loss) for r in ordered if r.loss is not None and r.local_batch]
        weight = sum(batch for batch, _ in lossy)
        diverged = any(r.diverged for r in ordered)
        known = [r.global_grad_sq for r in ordered if r.global_grad_sq is not None]
        return GroupStep(
            step=step,
            samples=max(r.samples for r in ordered),
            step_s=max(r.step_s for r in ordered),
            compute_s=compute_s,
            wait_s=wait_s,
            comm_s=comm_s,
            peak_bytes=peak_bytes,
            local_batches=local_batches,
            local_grad_sq=local_grad_sq,
            global_grad_sq=known[0] if known else float("nan"),
            loss=sum(batch * loss for batch, loss in lossy) / weight if weight and not diverged else None,
            diverged=diverged,
            counts=not any(r.marks for r in ordered)
            and all(r.local_batch == self.shares[w] for w, r in zip(self.workers, ordered, strict=True)),
            epoch=max(r.epoch for r in ordered),
            first_pass=ordered[0].first_pass if len(ordered) == 1 else 0,
            first_pass_sq=float("nan") if ordered[0].first_pass_sq is None else ordered[0].first_pass_sq,
        )

    def restart(self, step: int) -> None:
        """Let only steps from ``step`` on count: something outside the plan changed there."""
        self.since = max(self.since, step)
        self._ripe = None

    def ripe(self) -> Sequence[GroupStep]:
        """Return the steps that count, in their order: after the warm-up, unmarked, of full size."""
        if self._ripe is None:
            settled = self._settle()
            begin = None if settled is None else bisect_left(self._timed, max(settled, self.since), key=_number)
            self._ripe = [] if begin is None else self._timed[begin:]
        return self._ripe

    def counted(self) -> Sequence[GroupStep]:
        """Return the steps that are fit for timing, in their order, those of the warm-up too."""
        if self._counted is None:
            self._counted = self._timed[:]
        return self._counted

    def newest(self) -> Iterator[GroupStep]:
        """Return all complete steps, also those that do not count, the newest first."""
        return (self._steps[step] for step in self._order[::-1])

    def _settle(self) -> int | None:
        """Return the first step after the warm-up; None while that goes on. Later steps never move it."""
        if self._settled is None:
            times = np.array([s.step_s for s in self._timed])
            self._settled = settled_from([s.step for s in self._timed], times, self.first, self._warmup_steps)
        return self._settled


def _number(one: GroupStep) -> int:
    return one.step


class Ingest:
    """Sorts the reports of all workers into the window of the plan that runs."""

    def __init__(self, warmup_steps: int, length: int) -> None:
        self._warmup_steps = warmup_steps
        self._length = length
        self.window: Window | None = None
        self.set_aside: Counter[str] = Counter()
        self._incarnations: dict[str, str] = {}
        self._heard: dict[str, float] = {}
        self._early: deque[tuple[str, str, int, StepReport]] = deque(maxlen=_EARLY_REPORTS)

    def members(self, workers: Iterable[WorkerInfo], now: float) -> None:
        """Take over a new membership: what belongs to other lives no longer counts, nor does any present window."""
        self._incarnations = {w.worker_id: w.incarnation for w in workers}
        self._heard = {w: self._heard.get(w, now) for w in self._incarnations}
        self.window = None

    def begin(
        self, version: int, generation: int, shares: Mapping[str, int], first: int, now: float
    ) -> list[GroupStep]:
        """Open the window of a plan that all workers run since step ``first``; return what was waiting for it."""
        self.window = Window(version, generation, shares, first, self._warmup_steps, self._length)
        self._heard = dict.fromkeys(shares, now)
        early, self._early = self._early, deque(maxlen=_EARLY_REPORTS)
        steps = [self._sort(*entry) for entry in early]
        return [step for step in steps if step is not None]

    def go_on(self, version: int) -> list[GroupStep]:
        """Let a plan that differs in nothing that takes time fill the present window too; return as `begin` does."""
        if self.window is None:
            return []
        self.window.version = version
        early, self._early = self._early, deque(maxlen=_EARLY_REPORTS)
        steps = [self._sort(*entry) for entry in early]
        return [step for step in steps if step is not None]

    def take(
        self, worker_id: str, incarnation: str, generation: int, report: StepReport, now: float
    ) -> GroupStep | None:
        """Take one report; return the group step that it completes."""
        if self._incarnations.get(worker_id) != incarnation:
            self.set_aside["other life"] += 1
            return None
        self._heard[worker_id] = now
        return self._sort(worker_id, incarnation, generation, report)

    def _sort(self, worker_id: str, incarnation: str, generation: int, report: StepReport) -> GroupStep | None:
        window = self.window
        place = (generation, report.plan_version)
        if window is None or place > (window.generation, window.version):
            self._early.append((worker_id, incarnation, generation, report))
            return None
        if self._incarnations.get(worker_id) != incarnation or worker_id not in window.shares:
            self.set_aside["other life"] += 1
            return None
        if place < (window.generation, window.oldest):
            self.set_aside["other plan"] += 1
            return None
        return window.add(worker_id, report, self.set_aside)

    def stale(self, now: float) -> frozenset[str]:
        """Return the workers of the running plan that have been silent for too long, by the time of arrival."""
        if self.window is None:
            return frozenset()
        ripe = self.window.ripe()
        bound = _STALE_S + (_STALE_STEPS * ripe[-1].step_s if ripe else 0.0)
        return frozenset(w for w in self.window.shares if now - self._heard.get(w, now) > bound)
