"""What this worker's device can hold, and what follows from it: which plans it takes up, in which passes it runs them.

A worker says that it holds a plan only once its own micro-batch of that plan is known to fit: not larger than the
largest that ran here, or tried out between two steps. As the group takes up a plan only when all of it hold it, a plan
that does not fit somewhere is never run; the operator hears of it and plans anew. A size that ran and fails later
(longer inputs, fragments) voids its step for all, and is run in smaller passes from then on.
"""

from __future__ import annotations

import logging

import torch
from torch.nn.modules.batchnorm import _NormBase

from rex_worker.devices import Pacer
from rex_worker.guard import ForwardGuard
from rex_worker.link import Link
from rex_worker.memory import Meter, is_out_of_memory, is_scarce, meter_of
from rex_worker.participation import Term
from rex_worker.probe import EmulatedMemory, Judge, Replay, Unlimited
from rex_worker.protocol import OutOfMemory, Plan
from rex_worker.rewind import Rewind

log = logging.getLogger("rex.memory")


class Headroom:
    """One worker's knowledge of its memory. ``peak`` and ``total`` are bytes, 0 on a device without its own memory.

    With ``together`` all workers run each pass together, and so equally many.
    """

    def __init__(
        self,
        worker_id: str,
        link: Link,
        device: torch.device,
        judge: Judge,
        meter: Meter,
        rewind: Rewind,
        *,
        together: bool = False,
    ) -> None:
        self._worker_id = worker_id
        self._link = link
        self._device = device
        self._judge = judge
        self._meter = meter
        self._rewind = rewind
        self._together = together
        self._ran = 0
        self._failed: int | None = None
        self._refused: tuple[int, int] | None = None

    # --- steps ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A step begins: what it changes beside the parameters can be put back from now on."""
        self._rewind.mark()
        self._meter.restart()

    def applied(self, samples: int) -> None:
        """A step whose largest pass had so many samples was applied."""
        self._ran = max(self._ran, samples)

    def void(self) -> None:
        """The step does not count."""
        self._rewind.back()

    def peak(self) -> int:
        """Most memory in use at once since the step began."""
        return self._meter.peak()

    @property
    def total(self) -> int:
        """The device's memory."""
        return self._meter.total

    def is_full(self, error: BaseException) -> bool:
        """Whether ``error`` says that this device's memory is full."""
        return is_out_of_memory(error, self._device, scarce=is_scarce(self._meter))

    def ran_out(self, plan: Plan, samples: int, message: str) -> None:
        """A pass of so many samples did not fit, whatever was thought to; tell the operator."""
        self._failed = samples if self._failed is None else min(self._failed, samples)
        self._ran = min(self._ran, samples - 1)
        self._tell(plan, samples, message)

    # --- plans ------------------------------------------------------------------------------------------------------

    def passes(self, plan: Plan) -> int:
        """In how many passes the plan has this worker take its share."""
        return plan.accumulation if self._together else plan.passes_of(self._worker_id)

    def pass_limit(self, plan: Plan) -> int | None:
        """The most samples per pass, where the plan asks for more than ever fitted; None: as the plan says."""
        if self._failed is None or self._largest_pass(plan) < self._failed:
            return None
        return max(1, self._failed // 2)

    def held_version(self, term: Term) -> int:
        """Version of the newest plan that this worker can say it holds: the newest that came, unless it must not run.

        One that cannot be judged yet is held some steps later, or refused.
        """
        directives, generation, running = self._link.directives, term.group.generation, term.plan.version
        newest = directives.newest_version(generation)
        plan = directives.plan(generation, newest) if newest > running else None
        if plan is None:
            return running
        samples = self._largest_pass(plan)
        why = self._verdict(samples)
        if why:
            self._refuse(plan, samples, why)
        return newest if why == "" else running

    def try_out(self) -> None:
        """Between two steps: make the trial that a plan waits for."""
        self._judge.try_out()

    def _largest_pass(self, plan: Plan) -> int:
        share = plan.local_batches[self._worker_id]
        return -(-share // min(self.passes(plan), share))

    def _verdict(self, samples: int) -> str | None:
        if samples <= self._ran:
            return ""
        if self._failed is not None and samples >= self._failed:
            return f"{self._failed} samples did not fit before"
        return self._judge.verdict(samples)

    def _refuse(self, plan: Plan, samples: int, why: str) -> None:
        key = (plan.generation, plan.version)
        if self._refused != key:
            self._refused = key
            log.warning("plan %d is not taken up: %d samples do not fit here (%s)", plan.version, samples, why)
            self._tell(plan, samples, why)

    def _tell(self, plan: Plan, samples: int, message: str) -> None:
        notice = OutOfMemory(
            generation=plan.generation, plan_version=plan.version, local_batch=samples, message=message[:500]
        )
        self._link.standing.out_of_memory = notice
        self._link.send(notice)


def guarded(
    model: torch.nn.Module, device: torch.device, pacer: Pacer | None, worker_id: str, link: Link, *, together: bool
) -> tuple[ForwardGuard, Headroom]:
    """Put a guard around the model's forward pass, and set up what is known of the device's memory."""
    meter = meter_of(device)
    guard = ForwardGuard(model, device, meter)
    judge: Judge = Unlimited()
    if pacer is not None:
        judge = EmulatedMemory(pacer)
    elif device.type == "cuda":
        judge = Replay(guard, device, meter)
    # Normalisation layers are put back by those who average their statistics.
    rewind = Rewind(model, device, but=(_NormBase,))
    return guard, Headroom(worker_id, link, device, judge, meter, rewind, together=together)
