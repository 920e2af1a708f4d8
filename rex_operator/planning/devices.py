"""What the job has learned about its devices, kind by kind and worker by worker.

Workers of one kind share a curve, so that one of them measured at 32 and another at 48 help each other and a newcomer
is known at once; but one of them may be slower than its kind (a hot card, a noisy neighbour), and must be seen as such
rather than bend the curve of all. The two are told apart by when a time changes: a surprise right after the share
changed, common to the kind, is the curve's; a surprise of one worker among its peers, or while nothing was changed, is
the worker's. Memory ceilings are bounds from both sides: the largest size that ran and the smallest that did not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated, NamedTuple

from pydantic import Field

from rex_operator.planning.curves import TRUST, Point, StepTimeCurve
from rex_operator.planning.memory import USABLE, Limits, meeting
from rex_operator.planning.split import WorkerModel
from rex_operator.planning.types import Record, WorkerInfo

MAX_KINDS = 32
MAX_POINTS = 64
"""Sizes remembered per kind."""
MAX_PEAKS = 16
"""... with the memory that they took."""
NOTABLE = 0.05
"""A deviation below 5 % is noise or shape, not another speed."""
HEADROOM = 0.9
"""Of the size that ran out of memory, unless a larger one is known to run ..."""
LEAST_HEADROOM = 0.5
"""... and down to this, when what was left of it failed again and again: each failure costs a step or a worker."""
_AGEING = 0.02**2 / 600
"""Variance of the log that a measurement gains per second: 2 % in ten minutes, 5 % in an hour."""
_BIN = 0.03
_ENOUGH = 3
"""Sizes from which on a kind's curve stands on its own."""
_TWINS = 0.01
"""Difference (of the log) between two workers of a kind that is believed by half."""
_MODEL = 1e-4
"""Variance floor of a measurement: medians of long windows still differ by about 1 % for no known reason."""

_JUMP = math.log(1.2)
"""A change of a worker's time that may be a cliff ..."""
_SAME = 0.4
"""... and by how much of it the way back may differ."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """One worker's median seconds per micro-batch in a window; ``variance`` is that of the logarithm."""

    worker: WorkerInfo
    micro_batch: float
    seconds: float
    variance: float


class KeptPoint(Record):
    """A measured size of a kind; ``at`` is job time in seconds."""

    micro_batch: float
    log_seconds: float
    variance: float
    at: float


class KeptPeak(Record):
    """Most bytes in use, seen at a micro-batch."""

    micro_batch: float
    peak_bytes: float


class KindState(Record):
    """What is kept of one kind of device."""

    points: Annotated[tuple[KeptPoint, ...], Field(max_length=MAX_POINTS)] = ()
    ran: int = 0
    """Largest micro-batch that ran."""
    failed: int | None = None
    """Smallest micro-batch that ran out of memory."""
    peaks: Annotated[tuple[KeptPeak, ...], Field(max_length=MAX_PEAKS)] = ()


class DevicesState(Record):
    """What is kept of all devices; ``slowness`` holds the logarithm per worker life (``id/incarnation``)."""

    kinds: dict[str, KindState] = Field(default_factory=dict, max_length=MAX_KINDS)
    slowness: dict[str, float] = Field(default_factory=dict, max_length=1024)


@dataclass(slots=True)
class _Kind:
    points: dict[int, KeptPoint]
    ran: int = 0
    failed: int | None = None
    misses: int = 0
    """Ceilings in a row that turned out to be too high."""
    curve: StepTimeCurve | None = None
    peaks: dict[int, KeptPeak] = field(default_factory=dict)


class _Suspect(NamedTuple):
    """A jump of a worker's time that came with another share: its speed, or a cliff of its curve?"""

    micro_batch: float
    log_seconds: float
    slowness: float
    """Before the jump; a logarithm, as the next."""
    change: float

    def undone_by(self, change: float) -> bool:
        """Return whether a later jump takes this one back."""
        return abs(self.change + change) <= _SAME * abs(self.change)


class _Peers(NamedTuple):
    """How slow the measured workers of a kind are: the median of the logs, and `_middle` of them."""

    usual: float
    middle: float


_NOBODY = _Peers(0.0, 0.0)


class Devices:
    """Curves per kind, slowness per worker, ceilings per kind.

    ``least`` is what each worker gets in a pass at least: no guess about speed or memory goes below it.
    """

    def __init__(self, saved: DevicesState | None = None, least: int = 1) -> None:
        self._least = least
        self._kinds: dict[str, _Kind] = {}
        self._slowness: dict[str, float] = dict(saved.slowness) if saved else {}
        self._sizes: dict[str, float] = {}
        """Micro-batch at which each life was seen last."""
        self._suspects: dict[str, _Suspect] = {}
        for name, kept in (saved.kinds if saved else {}).items():
            points = {_bin(p.micro_batch): p for p in kept.points}
            peaks = {_bin(p.micro_batch): p for p in kept.peaks}
            self._kinds[name] = _Kind(points, kept.ran, kept.failed, peaks=peaks)

    # --- speed ---

    def learn(self, sightings: Sequence[Sighting], at: float, moved: bool) -> None:
        """Take in the medians of a window at job time ``at``; ``moved``: the first ones since the shares changed."""
        by_kind: dict[str, list[Sighting]] = {}
        for sighting in sightings:
            if sighting.seconds > 0 and math.isfinite(sighting.seconds) and sighting.micro_batch > 0:
                by_kind.setdefault(sighting.worker.device, []).append(sighting)
        for name, group in by_kind.items():
            kind = self._kind(name)
            if kind is None:
                continue
            if moved or not kind.points:
                self._shape(kind, group, at)
            for sighting in group:
                self._adjust(kind, sighting, at)
                kind.ran = max(kind.ran, math.ceil(sighting.micro_batch))
                kind.misses = 0

    def _adjust(self, kind: _Kind, s: Sighting, at: float) -> None:
        """Take the worker's present slowness, unless the same jump came and went with its share: that is a cliff.

        A jump of a worker's time right after its share moved may be either. If it goes when the share goes back, the
        curve is taken to have it.
        """
        life, level = _life(s.worker), math.log(s.seconds)
        before, last = self._slowness.get(life, 0.0), self._sizes.get(life, s.micro_batch)
        now = level - math.log(float(self._curve(kind, at).time(s.micro_batch)))
        change, suspect = now - before, self._suspects.pop(life, None)
        self._sizes[life] = s.micro_batch
        if abs(math.log(s.micro_batch / last)) >= 2 * _BIN and abs(change) >= _JUMP:
            if suspect is not None and suspect.undone_by(change):
                for size, seconds in ((suspect.micro_batch, suspect.log_seconds), (s.micro_batch, level)):
                    log_seconds = seconds - suspect.slowness
                    self._put(kind, KeptPoint(micro_batch=size, log_seconds=log_seconds, variance=s.variance, at=at))
                now = level - math.log(float(self._curve(kind, at).time(s.micro_batch)))
            else:
                self._suspects[life] = _Suspect(s.micro_batch, level, before, change)
        elif suspect is not None and abs(change) < _JUMP:
            self._suspects[life] = suspect
        self._slowness[life] = now

    def _shape(self, kind: _Kind, group: Sequence[Sighting], at: float) -> None:
        """Let the kind's curve learn; what sets one worker apart from its peers is kept out of it."""
        usual = {_life(s.worker): self._slowness.get(_life(s.worker), 0.0) for s in group}
        if kind.points:
            curve = self._curve(kind, at)
            surprise = {
                _life(s.worker): math.log(s.seconds / float(curve.time(s.micro_batch))) - usual[_life(s.worker)]
                for s in group
            }
            common = _middle(surprise.values())
            for life, value in surprise.items():
                if abs(value - common) > NOTABLE:
                    usual[life] += value - common
        for s in group:
            level = math.log(s.seconds) - usual[_life(s.worker)]
            excess = self._implausible(kind, s.micro_batch, level)
            self._put(
                kind, KeptPoint(micro_batch=s.micro_batch, log_seconds=level - excess, variance=s.variance, at=at)
            )

    @staticmethod
    def _implausible(kind: _Kind, micro_batch: float, level: float) -> float:
        """Return by how much a new point would make time fall with size, or rise far faster than it.

        No device does that, so this part is a change of speed that came together with the change of the share.
        """
        if not kind.points:
            return 0.0
        nearest = min(kind.points.values(), key=lambda p: abs(math.log(p.micro_batch / micro_batch)))
        move = math.log(micro_batch / nearest.micro_batch)
        if abs(move) < 2 * _BIN:
            return 0.0
        rise = level - nearest.log_seconds
        low, high = sorted((0.0, 1.3 * move))
        if rise < low - NOTABLE:
            return rise - low
        return rise - high if rise > high + NOTABLE else 0.0

    def _put(self, kind: _Kind, point: KeptPoint) -> None:
        """Add a point; older ones at the same size are averaged in by their certainty, or replaced if they disagree."""
        place = _bin(point.micro_batch)
        weight, level = 1 / (point.variance + _MODEL), point.log_seconds
        total, sum_ = weight, weight * level
        for neighbour in (place - 1, place, place + 1):
            old = kind.points.pop(neighbour, None)
            if old is not None and abs(old.log_seconds - level) <= NOTABLE:
                old_weight = 1 / (old.variance + _MODEL + _AGEING * max(0.0, point.at - old.at))
                total, sum_ = total + old_weight, sum_ + old_weight * old.log_seconds
        kind.points[place] = point.model_copy(update={"log_seconds": sum_ / total, "variance": 1 / total})
        if len(kind.points) > MAX_POINTS:
            del kind.points[min(kind.points, key=lambda k: kind.points[k].at)]
        kind.curve = None
        for other in self._kinds.values():
            if len(other.points) < _ENOUGH:
                other.curve = None  # it may have borrowed this one's shape

    def _kind(self, name: str) -> _Kind | None:
        if name not in self._kinds:
            if len(self._kinds) >= MAX_KINDS:
                return None
            self._kinds[name] = _Kind({})
        return self._kinds[name]

    def _curve(self, kind: _Kind, at: float) -> StepTimeCurve:
        """Return a kind's curve; one of few sizes may take after the other kinds', which run the same model."""
        if kind.curve is None:
            few = len(kind.points) < _ENOUGH
            others = [k for k in self._kinds.values() if k is not kind and len(k.points) >= _ENOUGH] if few else []
            kind.curve = StepTimeCurve.fit(
                [
                    Point(p.micro_batch, math.exp(p.log_seconds), p.variance + _MODEL + _AGEING * max(0.0, at - p.at))
                    for p in kind.points.values()
                ],
                [self._curve(other, at) for other in others],
            )
        return kind.curve

    def models(
        self, workers: Sequence[WorkerInfo], at: float, trust: float = TRUST, *, own_passes: bool = False
    ) -> list[WorkerModel] | None:
        """Return what is known of each worker, the ceilings cut to the trusted sizes; None while no kind was measured.

        A kind not seen yet is taken for the slowest known one until its first window. ``own_passes``: each worker may
        take its own number of passes.
        """
        curves = {name: self._curve(kind, at) for name, kind in self._kinds.items() if kind.points}
        if not curves:
            return None
        stranger = max(curves.values(), key=lambda c: float(c.time(c.sizes[0])) / c.sizes[0])
        peers, models = self._peers(workers), []
        fits: dict[tuple[str, int | None, int], int] = {}
        for worker in workers:
            curve = curves.get(worker.device, stranger)
            ceiling = self.ceiling(worker)
            slowness = math.exp(self._slowness_of(worker, peers.get(worker.device, _NOBODY)))
            bounds = [] if ceiling is None else [ceiling]
            if math.isfinite(trust):
                bounds.append(max(self._least, math.floor(curve.trusted(trust)[1])))
            cap = min(bounds) if bounds else None
            alike = worker.device, worker.max_local_batch, worker.memory_bytes
            if own_passes and alike not in fits:
                fits[alike] = self.limits(worker).surely()
            surely = min(fits[alike], fits[alike] if cap is None else cap) if own_passes else None
            models.append(WorkerModel(worker.worker_id, curve, slowness, cap, surely, self._least))
        return models

    def _peers(self, team: Iterable[WorkerInfo]) -> dict[str, _Peers]:
        """Return the measured log slownesses by kind, once for the whole team."""
        found: dict[str, list[float]] = {}
        for worker in team:
            if _life(worker) in self._slowness:
                found.setdefault(worker.device, []).append(self._slowness[_life(worker)])
        return {device: _Peers(median(known), _middle(known)) for device, known in found.items()}

    def _slowness_of(self, worker: WorkerInfo, peers: _Peers) -> float:
        """Return the worker's own log slowness, or its peers' middle for one that was not measured.

        What sets it apart from its peers counts as far as it stands out of the noise: where a curve is flat, a
        difference of half a percent would otherwise give one twin twice the samples of the other.
        """
        own = self._slowness.get(_life(worker))
        if own is None:
            return peers.middle
        apart = own - peers.usual
        return peers.usual + apart * apart**2 / (apart**2 + _TWINS**2)

    def forget(self, workers: Iterable[WorkerInfo]) -> None:
        """Drop what was known of lives that are not among ``workers``; kinds stay."""
        lives = {_life(w) for w in workers}
        self._slowness = {life: value for life, value in self._slowness.items() if life in lives}
        self._sizes = {life: size for life, size in self._sizes.items() if life in lives}
        self._suspects = {life: suspect for life, suspect in self._suspects.items() if life in lives}

    # --- memory ---

    def ceiling(self, worker: WorkerInfo) -> int | None:
        """Return the most samples per micro-batch that the worker may get; None: no bound is known."""
        kind = self._kinds.get(worker.device)
        learned = None
        if kind is not None and kind.failed is not None:
            part = max(LEAST_HEADROOM, HEADROOM**2 ** max(0, kind.misses - 1))
            learned = min(kind.failed - 1, max(kind.ran, self._least, math.floor(part * kind.failed)))
        bounds = [b for b in (learned, worker.max_local_batch) if b is not None]
        return min(bounds) if bounds else None

    def proven(self, worker: WorkerInfo) -> int:
        """Return the largest micro-batch that the worker is known to hold (at least 1, lest anything divide by it)."""
        kind = self._kinds.get(worker.device)
        return max(1, worker.max_local_batch or 0, kind.ran if kind is not None else 0)

    def limits(self, worker: WorkerInfo) -> Limits:
        """Return what is known of the largest micro-batch that fits on the worker."""
        kind = self._kinds.get(worker.device)
        peaks = {p.micro_batch: p.peak_bytes for p in kind.peaks.values()} if kind is not None else {}
        found = meeting(peaks, USABLE * worker.memory_bytes)
        return Limits(
            ran=float(self.proven(worker)),
            failed=None if kind is None or kind.failed is None else float(kind.failed),
            ceiling=self.ceiling(worker),
            **({} if found is None else {"estimate": found[0], "spread": found[1]}),
        )

    def used(self, worker: WorkerInfo, micro_batch: float, peak_bytes: float) -> None:
        """Learn how much memory ``micro_batch`` samples took at most; nothing where that is not known (0)."""
        kind = self._kinds.get(worker.device)
        if kind is None or not peak_bytes > 0:
            return
        place = _bin(micro_batch)
        last = kind.peaks.pop(place, None)  # the newest go last, and the oldest are dropped
        most = max(peak_bytes, last.peak_bytes if last is not None else 0.0)
        kind.peaks[place] = KeptPeak(micro_batch=micro_batch, peak_bytes=most)
        if len(kind.peaks) > MAX_PEAKS:
            del kind.peaks[next(iter(kind.peaks))]

    def out_of_memory(self, worker: WorkerInfo, micro_batch: int) -> None:
        """Learn that ``micro_batch`` samples did not fit, whatever was thought to."""
        kind = self._kind(worker.device)
        if kind is None:
            return
        if kind.failed is None or micro_batch < kind.failed:
            kind.failed = micro_batch
            kind.misses += 1
        if kind.ran >= kind.failed:  # it ran before and does no longer: fragmentation, longer inputs; keep distance
            kind.ran = min(kind.failed - 1, math.floor(HEADROOM * kind.failed))

    def state(self) -> DevicesState:
        """Return what is to be kept."""
        return DevicesState(
            kinds={
                name: KindState(
                    points=tuple(kind.points.values()),
                    ran=kind.ran,
                    failed=kind.failed,
                    peaks=tuple(kind.peaks.values()),
                )
                for name, kind in self._kinds.items()
            },
            slowness=dict(list(self._slowness.items())[:1024]),
        )


def _life(worker: WorkerInfo) -> str:
    return f"{worker.worker_id}/{worker.incarnation}"


def _bin(micro_batch: float) -> int:
    return round(math.log(micro_batch) / _BIN)


def _middle(values: Iterable[float]) -> float:
    """Return the median; of an even number the middle one nearer to zero, so that one of two is not half blamed."""
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return low if abs(low) <= abs(high) else high
