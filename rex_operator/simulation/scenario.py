"""What happens to a job while it trains, as data: workers slow down, drift, leave and join.

Events are placed on the way to the target, not on the clock: whoever trains faster meets each of them as well, and
none is over before a slow job has begun to feel it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rex_operator.simulation.devices import Device
from rex_operator.simulation.job import Job


@dataclass(frozen=True)
class Event:
    """Something that happens when ``at`` of the way is done."""

    at: float
    slow: Mapping[int, float] = field(default_factory=dict)
    """Workers by place, and how many times longer they take than their device from now on."""
    leave: tuple[int, ...] = ()
    join: Mapping[int, Device] = field(default_factory=dict)
    """New workers by place; a place that was left gets a new worker."""


@dataclass(frozen=True)
class Scenario:
    """A named course of events, in their order."""

    name: str
    events: tuple[Event, ...] = ()


HL = {1: (12, 12, 12, 12), 2: (12, 12, 8, 16), 4: (9, 9, 6, 24), 8: (6, 6, 4, 32)}
"""Cores of four workers at heterogeneity levels 1 to 8 (OmniLearn, TPDS 2025) ..."""
SCHEDULE = (1, 2, 4, 8, 8, 4, 2, 1)
"""... and its dynamic schedule of them, in equal blocks."""
_EACH = 12
_DRIFT_STEPS = 40


def static() -> Scenario:
    """Return the scenario in which nothing happens."""
    return Scenario("static")


def straggler(devices: Sequence[Device], factor: float = 2.0) -> Scenario:
    """Return the scenario in which a worker takes twice as long from a quarter to three quarters of the way.

    It is the first of the fastest kind, by the samples per second of its largest micro-batch or of a large one.
    """
    place = max(range(len(devices)), key=lambda i: _rate(devices[i]))
    return Scenario("straggler", (Event(0.25, {place: factor}), Event(0.75, {place: 1.0})))


def changing(devices: Sequence[Device]) -> Scenario:
    """Return the scenario in which all workers change speed all the time.

    OmniLearn's schedule in eight blocks: worker i is slowed (or sped up) as one of 12 / 12 / 12 / 12 cores that gets
    the cores of place i modulo 4. On top of it the first worker drifts to half its speed over the whole way.
    """
    events = []
    for step in range(_DRIFT_STEPS):
        at = step / _DRIFT_STEPS
        cores = HL[SCHEDULE[math.floor(at * len(SCHEDULE))]]
        slow = {i: _EACH / cores[i % len(cores)] for i in range(len(devices))}
        slow[0] *= 1 + at
        events.append(Event(at, slow))
    return Scenario("changing", tuple(events))


def joins_and_leaves(devices: Sequence[Device]) -> Scenario:
    """Return the scenario in which the last worker leaves, comes back new, and the first does the same later."""
    first, last = 0, len(devices) - 1
    return Scenario(
        "joins/leaves",
        (
            Event(0.2, leave=(last,)),
            Event(0.4, join={last: devices[last]}),
            Event(0.6, leave=(first,)),
            Event(0.8, join={first: devices[first]}),
        ),
    )


def _rate(device: Device) -> float:
    size = device.most or 1024
    return size / device.seconds(size)


class Director:
    """Lets the events of a scenario happen to a job, each once."""

    def __init__(self, scenario: Scenario, job: Job) -> None:
        self._events = list(scenario.events)
        self._names = dict(enumerate(job.devices))

    def direct(self, job: Job, way: float) -> None:
        """Let all happen that is due when ``way`` of the target is reached."""
        while self._events and self._events[0].at <= way:
            event = self._events.pop(0)
            for place, factor in event.slow.items():
                job.slow[self._names[place]] = factor
            if event.leave or event.join:
                gone = [self._names[place] for place in event.leave]
                new = {f"w{place}-{job.generation}": device for place, device in event.join.items()}
                self._names.update(zip(event.join, new, strict=True))
                job.join(new, gone)
