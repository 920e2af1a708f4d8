"""Where a step's time went: data, own computation, waiting for the others.

The planner's curves need the time that this device computes, free of any waiting. On the CPU the wall clock tells
it. A GPU runs behind the program, so there marks are CUDA events in its stream, read once the step's results were
needed anyway.
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

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._passes: list[tuple[Any, Any]] = []
        self.begun = 0.0
        """When the last pass began, on ``time.perf_counter``."""
        self._begun: Any = None
        self._reduced: Any = None
        self.data_s = 0.0

    def pass_begins(self) -> None:
        """A micro-batch is handed to the script."""
        self.begun = time.perf_counter()
        self._begun = self._clock.mark()

    def pass_ends(self) -> None:
        """Its backward pass is done."""
        self._passes.append((self._begun, self._clock.mark()))

    def reduced(self) -> None:
        """The group's gradients are there."""
        self._reduced = self._clock.mark()

    def compute_s(self) -> float:
        """Forward and backward of all passes."""
        return sum(self._clock.between(start, end) for start, end in self._passes)

    def wait_s(self) -> float:
        """From the end of the last pass to the arrival of the group's gradients."""
        if not self._passes or self._reduced is None:
            return 0.0
        return self._clock.between(self._passes[-1][1], self._reduced)
