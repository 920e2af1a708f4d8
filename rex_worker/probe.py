"""Does a micro-batch fit into this device's memory? Asked before the group uses it, and answered without training.

A plan that does not fit on one worker costs all of them a step, and a worker at the edge of its memory fails some
hundred steps later, when its inputs are a little longer. So a size that never ran here is tried out first: forward and
backward on the latest inputs, repeated to that size. A real step holds more than that (the loss, the buckets, the
optimiser's moments of use), so what the trial needs is scaled by what a real step needed at the size that runs.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from rex_worker.devices import Pacer, release_memory
from rex_worker.errors import first_line
from rex_worker.guard import Call, ForwardGuard
from rex_worker.memory import Meter, is_out_of_memory
from rex_worker.rewind import Rewind

log = logging.getLogger("rex.memory")

KEPT_FREE = 0.05
"""Of the memory that this process can have: with less left, a size does not fit."""
_EASY = 0.8
"""Up to this part of it a prediction is trusted without a trial."""
_MOST_BEYOND = 4.0
"""A real step never needs more than so many times what forward and backward alone do."""


class Judge(Protocol):
    """Says whether a micro-batch fits."""

    def verdict(self, samples: int) -> str | None:
        """Why so many samples do not fit, or "" if they do; None when it takes a trial to tell."""

    def try_out(self) -> None:
        """Between two steps: make the trial that the last ``verdict`` of None asked for, if it can be made now."""


class Unlimited:
    """For a device whose memory nobody can measure: what does not fit shows in the step."""

    def verdict(self, samples: int) -> str | None:
        """Everything fits."""
        return ""

    def try_out(self) -> None:
        """Nothing to try."""


class EmulatedMemory:
    """Asks the emulated device's model of its memory."""

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer

    def verdict(self, samples: int) -> str | None:
        """What the device would say to so many samples."""
        try:
            self._pacer.check_memory(samples)
        except torch.OutOfMemoryError as error:
            return str(error)
        return ""

    def try_out(self) -> None:
        """Nothing to try."""


@dataclass(frozen=True)
class Prediction:
    """Bounds of the peak, in bytes, of a step with another micro-batch."""

    low: float
    high: float


def predict(resident: int, peak: int, gradients: int, samples: int, wanted: int) -> Prediction:
    """Predict the peak at ``wanted`` samples from the one at ``samples``; sizes in bytes.

    Memory is close to linear in the samples. What is ``resident`` between steps stays as it is; of the rest up to
    ``gradients`` may, or may not, be the gradients, which do not grow either.
    """
    grows, ratio = max(0, peak - resident), wanted / samples
    fixed = min(gradients, grows)
    return Prediction(low=resident + fixed + (grows - fixed) * ratio, high=resident + grows * ratio)


class Replay:
    """Tries a size out on the device: forward and backward that leave no trace."""

    def __init__(self, guard: ForwardGuard, device: torch.device, meter: Meter) -> None:
        self._guard = guard
        self._device = device
        self._meter = meter
        self._rewind = Rewind(guard.model, device)
        self._known: dict[int, str] = {}
        self._wanted: int | None = None

    def verdict(self, samples: int) -> str | None:
        """What an earlier trial found; else ask for one, for which the next step's inputs are kept."""
        if any(isinstance(parameter, DTensor) for parameter in self._guard.model.parameters()):
            return ""  # sharded: a pass of this worker alone would wait for the others for ever
        found = self._known.get(samples)
        if found is None:
            self._wanted, self._guard.recording = samples, True
        return found

    def try_out(self) -> None:
        """Make the trial that is asked for, if a step was recorded for it."""
        call, wanted = self._guard.recorded, self._wanted
        if call is None or wanted is None:
            return
        self._guard.recording, self._guard.recorded, self._wanted = False, None, None
        peak = self._meter.peak()
        self._known[wanted] = answer = self._judge(call, wanted, peak)
        release_memory(self._device)
        log.info("a micro-batch of %d samples %s", wanted, f"does not fit: {answer}" if answer else "fits")

    def _judge(self, call: Call, wanted: int, peak: int) -> str:
        meter, gradients = self._meter, sum(p.nbytes for p in self._guard.model.parameters() if p.requires_grad)
        resident, room = meter.used(), (1 - KEPT_FREE) * meter.room()
        foreseen = predict(resident, peak, gradients, call.samples, wanted)
        if foreseen.high <= _EASY * room:
            return ""
        if foreseen.low > room:
            return _too_much(foreseen.low, room)
        try:
            now = self.needs(call, call.samples)
            beyond = min(max(1.0, (peak - resident) / now), _MOST_BEYOND) if now > 0 else 1.0
            needed = resident + beyond * self.needs(call, wanted)
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error, self._device):
                return first_line(error)
            log.warning("could not try a micro-batch of %d samples out: %s", wanted, first_line(error))
            return ""
        return "" if needed <= room else _too_much(needed, room)

    def needs(self, call: Call, samples: int) -> int:
        """Run forward and backward on so many samples; returns the bytes that they needed beyond what was in use.

        Gradients, buffers and random numbers are as before; the optimiser is not asked.
        """
        model, meter = self._guard.model, self._meter
        self._rewind.mark()
        meter.restart()
        before = meter.used()
        try:
            outputs = call.again(self._guard.forward, samples)
            graded = [leaf for leaf in tree_leaves(outputs) if _graded(leaf)]
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            loss = torch.stack([leaf.float().sum() for leaf in graded]).sum()
            torch.autograd.grad(loss, trained, allow_unused=True)
            return max(0, meter.peak() - before)
        finally:
            self._rewind.back()


def _graded(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad and leaf.is_floating_point()


def _too_much(needed: float, room: float) -> str:
    return f"it would need {needed / 2**30:.2f} GiB, and {room / 2**30:.2f} GiB can be had"
