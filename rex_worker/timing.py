"""Where a step's time went: data, own computation, waiting for the others, communication.

The planner's curves need the time that this device computes, free of any waiting. On the CPU the wall clock tells
it. A GPU runs behind the program, so there marks are CUDA events in its stream. They are read when the vote was cast,
which holds this worker's loss and gradient norm: the host had to wait for the device to be done with the step by then,
so that no mark costs a wait of its own.

For the same reason the wall clock tells on any device when this worker's own part was done. Each worker votes with the
seconds since the group's last exchange, a moment that all had in common: so all know how long the last one took, and
the rest until the sum is there is communication. Clocks are never compared, only durations.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Marks moments in the device's own order of work."""

    def mark(self) -> Any:
        """Note a moment."""

    def between(self, start: Any, end: Any) -> float:
        """Seconds from one mark to another; may wait until the device has passed ``end``."""


class WallClock:
    """For computation that is done when the call returns."""

    def mark(self) -> float:
        """Note a moment."""
        return time.perf_counter()

    def between(self, start: float, end: float) -> float:
        """Seconds from one mark to another."""
        return max(0.0, end - start)


class CudaClock:
    """For a stream of work on an NVIDIA device."""

    def mark(self) -> torch.cuda.Event:
        """Record an event in the current stream."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def between(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Seconds between two events; waits for ``end``."""
        end.synchronize()
        return max(0.0, float(start.elapsed_time(end)) / 1e3)


def clock_of(device: torch.device) -> Clock:
    """The clock that fits a device."""
    return CudaClock() if device.type == "cuda" else WallClock()


class StepTimes:
    """Gathers one step's marks; durations in seconds."""

    def __init__(self, clock: Clock, common: float | None) -> None:
        self._clock = clock
        self._common = common
        """When the group's last exchange was over, on ``time.perf_counter``."""
        self._passes: list[tuple[Any, Any]] = []
        self.begun = 0.0
        """When the last pass began, on ``time.perf_counter``."""
        self._begun: Any = None
        self._arrived = 0.0
        self.inside_s = 0.0
        """Spent in collectives within the passes (of a sharded model): no computation, but waiting."""
        self.data_s = 0.0
        self.wait_s = 0.0
        """For the other workers; where ``comm_s`` is None, it is in here as well."""
        self.comm_s: float | None = None
        """For the sum, since all had done their part; None if that moment is not known."""

    def pass_begins(self) -> None:
        """A micro-batch is handed to the script."""
        self.begun = time.perf_counter()
        self._begun = self._clock.mark()

    def pass_ends(self) -> None:
        """Its backward pass is done."""
        self._passes.append((self._begun, self._clock.mark()))

    def arrives(self) -> float:
        """This worker's part is done; returns the seconds since the group's last exchange, -1 if there was none."""
        self._arrived = time.perf_counter()
        return -1.0 if self._common is None else self._arrived - self._common

    def exchanged(self, latest_s: float | None) -> float:
        """The group's exchange is over; ``latest_s`` is the last worker's ``arrives``. Returns this common moment."""
        now = time.perf_counter()
        whole = wait = now - self._arrived
        if latest_s is not None and self._common is not None:
            wait = min(whole, max(0.0, self._common + latest_s - self._arrived))
            self.comm_s = whole - wait
        self.wait_s = wait + self.inside_s
        return now

    def compute_s(self) -> float:
        """Forward and backward of all passes."""
        whole = sum(self._clock.between(start, end) for start, end in self._passes)
        return max(0.0, whole - self.inside_s)
