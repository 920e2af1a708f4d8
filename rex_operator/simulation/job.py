"""A training job in virtual time, run by the planner that runs real ones: unlike devices, noise, gradients, no waiting.

The job is what the planner sees of one. Each worker computes as long as its device takes for its share, times noise;
the group waits for the slowest and sums its gradients; these have the noise scale of the job's present progress; the
last step of an epoch is short; a share that passes a device's memory loses the step; a new plan is taken up a few steps
after it was issued. Every plan is held against the promises of plans (`promises`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from rex_operator.planning import PlanDraft, Planner, SearchRequest, WorkerInfo, run_search
from rex_operator.simulation import promises
from rex_operator.simulation.communication import Communication
from rex_operator.simulation.devices import Device
from rex_operator.simulation.learning import NoiseScale, worth
from rex_worker.protocol import StepReport

POLL_S = 0.5
"""Seconds between two looks of the planner, as in the shells around it."""
_FREEDOM = 20
"""Degrees of freedom of a step's squared gradient norms around their mean: how noisy single steps are."""


@dataclass
class Job:
    """One job. Times are seconds, sizes samples; fields may be changed while it runs."""

    planner: Planner
    devices: dict[str, Device]
    """By worker id; changed by `join` only."""
    rng: np.random.Generator
    noise_scale: NoiseScale = lambda progress: 300.0
    noise: float = 0.02
    """Standard deviation of the logarithm of a worker's seconds ..."""
    correlation: float = 0.0
    """... and its lag-1 correlation from step to step."""
    overhead_s: float = 0.004
    """What every step takes beside computation ..."""
    communication: Communication | None = None
    """... and what depends on the plan."""
    base_batch: int = 0
    """Batch that progress is counted in; 0: the job's initial one."""
    epoch: int = 2**40
    """Samples per epoch; its last step takes what is left."""
    memory: dict[str, int] = field(default_factory=dict)
    """Samples per micro-batch that a kind of device holds, unknown to the planner."""
    bytes_per_sample: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Memory of a kind, in bytes, and how many samples per micro-batch fill it."""
    slow: dict[str, float] = field(default_factory=dict)
    """By worker: how many times longer it takes than its device would."""
    switch_steps: int = 2
    """Steps between the issue of a plan and its first step."""
    regroup_s: float = 0.0
    """Seconds that a change of the group costs all workers."""
    loss: Callable[[float, int], float] = lambda progress, batch: 2.0 / (1 + progress / 50_000)
    now: float = 1000.0
    step: int = 0
    samples: int = 0
    progress: float = 0.0
    """Useful samples so far."""
    generation: int = 0
    version: int = 0
    plan: PlanDraft | None = None
    drafts: list[PlanDraft] = field(default_factory=list)
    """All plans taken up."""
    spreads: list[float] = field(default_factory=list)
    """Of each step: longest over shortest computation."""
    lost_steps: int = 0
    """Steps that ran out of memory."""
    _disturbance: dict[str, float] = field(default_factory=dict)
    _means: tuple[dict[str, float], float] = field(default_factory=lambda: ({}, 0.0))
    """Under the present plan: seconds by worker, not slowed, and seconds of communication."""
    _fresh: bool = True
    """No step of this generation was done yet."""
    _next_poll: float = 0.0

    @classmethod
    def of(cls, planner: Planner, devices: Sequence[Device], seed: int = 0, **more: Any) -> Self:
        """Return a job with workers w0, w1, ... on these devices."""
        job = cls(planner, {}, np.random.default_rng(seed), **more)
        job.join({f"w{i}": device for i, device in enumerate(devices)})
        return job

    # --- the group ----------------------------------------------------------------------------------------------------

    def infos(self) -> list[WorkerInfo]:
        """Return the workers as the planner gets to know them."""
        return [
            WorkerInfo(
                name, f"{name}-life", device.kind, device.most, self.bytes_per_sample.get(device.kind, (0, 1))[0]
            )
            for name, device in self.devices.items()
        ]

    def join(self, devices: Mapping[str, Device], leave: Sequence[str] = ()) -> None:
        """Let workers come and go at once: a new generation."""
        self.devices = {w: d for w, d in {**self.devices, **devices}.items() if w not in leave}
        self.generation += 1
        self.now += self.regroup_s if self.plan is not None else 0.0
        self._fresh = True
        self._take_up(self.planner.set_workers(self.infos(), self.now))

    def _take_up(self, draft: PlanDraft) -> None:
        promises.check(draft, self.planner.spec.batch, {w: d.most for w, d in self.devices.items()})
        self.plan = draft
        self.drafts.append(draft)
        self.version += 1
        self._means = self._seconds(draft, draft.local_batches)
        self.planner.plan_running(self.version, self.generation, draft, self.step + 1, self.now)

    # --- how long a step takes ----------------------------------------------------------------------------------------

    def _seconds(self, plan: PlanDraft, shares: Mapping[str, int]) -> tuple[dict[str, float], float]:
        """Mean seconds of each worker's passes, if nothing slowed it, and of what comes after its last one."""
        compute, micro = {}, []
        for worker, share in shares.items():
            device, passes = self.devices[worker], _passes(plan, worker, share)
            compute[worker] = device.seconds(share / passes) * passes
            micro.append((device, share / passes))
        return compute, self.overhead_s + (self.communication.seconds(micro) if self.communication else 0.0)

    def compute_s(self, worker: str, plan: PlanDraft) -> float:
        """Return the worker's true mean seconds per step under a plan, now."""
        return self._seconds(plan, plan.local_batches)[0][worker] * self.slow.get(worker, 1.0)

    def step_s(self, plan: PlanDraft) -> float:
        """Return the mean seconds per step under a plan, but for the noise."""
        compute, after = self._seconds(plan, plan.local_batches)
        return max(seconds * self.slow.get(worker, 1.0) for worker, seconds in compute.items()) + after

    def goodput(self, plan: PlanDraft) -> float:
        """Return the useful samples per second under a plan, now."""
        base = self.base_batch or self.planner.spec.batch.initial
        return worth(self.noise_scale(self.progress), plan.global_batch, base) / self.step_s(plan)

    def _disturb(self, workers: Sequence[str]) -> list[float]:
        """Let each worker's AR(1) series go on by a step."""
        rho, state = self.correlation, self._disturbance
        fresh = self.rng.standard_normal(len(workers)) * math.sqrt(1 - rho * rho)
        moved = [rho * state.get(w, 0.0) + new for w, new in zip(workers, fresh.tolist(), strict=True)]
        self._disturbance = dict(zip(workers, moved, strict=True))
        return [math.exp(self.noise * value) for value in moved]

    # --- steps --------------------------------------------------------------------------------------------------------

    def one_step(self) -> None:
        """Do a step of all workers and report it; or lose it to a full memory."""
        plan = self.plan
        if plan is None:
            raise RuntimeError("no workers have joined the job")
        full = self._overfull(plan)
        if full is not None:
            self._lose(*full, plan)
            return
        left = self.epoch - self.samples % self.epoch
        if left >= plan.global_batch:
            shares, total, (means, communication) = plan.local_batches, plan.global_batch, self._means
        else:
            shares, total = _part(plan, left), left
            means, communication = self._seconds(plan, shares)
        workers = list(shares)
        slow, noise = self.slow, self._disturb(workers)
        compute = [means[w] * slow.get(w, 1.0) * factor for w, factor in zip(workers, noise, strict=True)]
        slowest = max(compute)
        communication *= max(0.1, float(self.rng.normal(1.0, 0.1)))
        took = slowest + communication
        epoch = self.samples // self.epoch
        phi = self.noise_scale(self.progress)
        self.now += took
        self.step += 1
        self.samples += total
        self.progress += worth(phi, total, self.base_batch or self.planner.spec.batch.initial)
        self.spreads.append(slowest / max(min(compute), 1e-9))
        whole = 1.0 + phi / total * float(self.rng.chisquare(_FREEDOM)) / _FREEDOM
        loss = self.loss(self.progress, plan.global_batch) * max(0.1, float(self.rng.normal(1.0, 0.05)))
        squares = self.rng.chisquare(_FREEDOM, len(workers)) / _FREEDOM
        first = math.ceil(total / _passes(plan, workers[0], total)) if len(workers) == 1 else 0
        first = first if first < total else 0
        finite = math.isfinite(loss)
        of_all = StepReport.model_construct(
            step=self.step,
            plan_version=self.version,
            samples=self.samples,
            epoch=epoch,
            local_batch=0,
            compute_s=0.0,
            wait_s=0.0,
            comm_s=None if self._fresh else communication,
            data_s=0.0,
            step_s=took,
            loss=loss if finite else None,
            diverged=not finite,
            global_grad_sq=whole,
            first_pass=first,
            first_pass_sq=1.0 + phi / first * float(self.rng.chisquare(_FREEDOM)) / _FREEDOM if first else None,
            peak_bytes=0,
            marks=[],
        )
        for worker, share, seconds, square in zip(workers, shares.values(), compute, squares.tolist(), strict=True):
            own = {
                "local_batch": share,
                "compute_s": seconds,
                "wait_s": slowest - seconds,
                "local_grad_sq": 1.0 + phi / max(share, 1) * square,
            }
            if self.bytes_per_sample:
                own["peak_bytes"] = self._peak(plan, worker, share)
            report = of_all.model_copy(update=own)
            self.planner.observe(worker, f"{worker}-life", self.generation, report, self.now)
        self._fresh = False

    def _overfull(self, plan: PlanDraft) -> tuple[str, int] | None:
        for worker, device in self.devices.items() if self.memory else ():
            micro = plan.micro_batch(worker)
            if micro > self.memory.get(device.kind, micro):
                return worker, micro
        return None

    def _lose(self, worker: str, micro_batch: int, plan: PlanDraft) -> None:
        """Spend the time of a step that comes to nothing, and tell the planner why."""
        self.now += self.step_s(plan)
        self.lost_steps += 1
        draft = self.planner.out_of_memory(worker, micro_batch, self.now)
        if draft is not None:
            self._take_up(draft)

    def _peak(self, plan: PlanDraft, worker: str, share: int) -> int:
        memory, most = self.bytes_per_sample.get(self.devices[worker].kind, (0, 1))
        return round(memory * share / _passes(plan, worker, share) / most)

    def advance(self) -> None:
        """Do a step, and let the planner look if it is time."""
        self.one_step()
        if self.now >= self._next_poll:
            self._next_poll = self.now + POLL_S
            self.poll()

    def run(self, seconds: float) -> None:
        """Train for so long; the planner looks after the first step."""
        end, self._next_poll = self.now + seconds, self.now
        while self.now < end:
            self.advance()

    def poll(self) -> None:
        """Let the planner decide, and take up what it wants, if nothing newer came in between."""
        answer = self.planner.poll(self.now)
        if isinstance(answer, SearchRequest):
            answer = self.planner.complete(answer, run_search(answer), self.now)
        if answer is not None:
            version = self.version
            for _ in range(self.switch_steps):
                self.one_step()
            if self.version == version:
                self._take_up(answer)

    def kinds(self) -> list[str]:
        """Return the kinds of the decisions that the planner remembers."""
        return [decision.kind for decision in self.planner.decisions]


def _passes(plan: PlanDraft, worker: str, share: int) -> int:
    """In how many passes a worker takes ``share`` samples under a plan: none of them is empty."""
    return max(1, min(plan.passes_of(worker), share))


def _part(plan: PlanDraft, samples: int) -> dict[str, int]:
    """Share ``samples`` in the proportions of a plan; the shares sum to them."""
    shares, before, done = {}, 0, 0
    for worker, share in plan.local_batches.items():
        before += share
        upto = samples * before // plan.global_batch
        shares[worker], done = upto - done, upto
    return shares
