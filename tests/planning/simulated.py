"""A training job in virtual time, for the planner's tests: unlike devices, noise, gradients, no sleeping.

The job is what the planner sees of one: each worker takes a + c b seconds per micro-batch times noise, the group waits
for the slowest and pays an overhead, gradients have a given noise scale, and a new plan is taken up two steps after it
was issued.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rex_operator.api.spec import RexJobSpec
from rex_operator.planning import PlanDraft, Planner, SearchRequest, WorkerInfo, run_search
from rex_worker.protocol import StepReport

POLL_S = 0.5


@dataclass
class Device:
    """Seconds per micro-batch of b samples: fixed + each * b, bent below ``knee`` samples, where the device is idle."""

    kind: str
    fixed: float
    each: float
    knee: float = 0.0

    def seconds(self, samples: float) -> float:
        beyond = samples - self.knee
        return self.fixed + self.each * (math.hypot(beyond, self.knee) + beyond) / 2


A100 = Device("a100", 0.006, 0.00020)
V100 = Device("v100", 0.010, 0.00045)
T4 = Device("t4", 0.018, 0.00110)
MIX = (A100, A100, V100, T4)
DEMO = (
    Device("a100", 0.0055, 0.00030, 24),
    Device("a100", 0.0055, 0.00030, 24),
    Device("v100", 0.0065, 0.00058, 12),
    Device("t4", 0.0090, 0.00145, 4),
)
"""Bent curves, as emulated devices have them."""


def spec(
    initial: int = 64,
    low: int = 32,
    high: int = 1024,
    *,
    policy: str = "rex",
    objective: str = "goodput",
    scaling: str = "adascale",
    validation: dict[str, Any] | None = None,
    trials: int = 40,
    cooldown: float = 2.0,
    min_share: int = 1,
) -> RexJobSpec:
    return RexJobSpec.model_validate(
        {
            "workers": {"min": 1, "max": 1024},
            "pools": [{"name": "any", "maxWorkers": 1024}],
            "template": {},
            "batch": {"initial": initial, "min": low, "max": high, "minShare": min_share},
            "learningRate": {"scaling": scaling},
            "planner": {
                "policy": policy,
                "objective": objective,
                "validation": validation or {"minSteps": 20, "warmupSteps": 5},
                "search": {"maxTrials": trials, "cooldownSeconds": cooldown},
            },
        }
    )


@dataclass
class Job:
    planner: Planner
    devices: dict[str, Device]
    rng: np.random.Generator
    noise_scale: Callable[[int], float] = lambda samples: 300.0
    noise: float = 0.02
    correlation: float = 0.0
    overhead_s: float = 0.004
    epoch: int = 2**40
    """Samples per epoch; its last step takes what is left."""
    memory: dict[str, int] = field(default_factory=dict)
    """Samples per micro-batch that a kind holds."""
    bytes_per_sample: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Memory of a kind, in bytes, and how many samples per micro-batch fill it."""
    slow: dict[str, float] = field(default_factory=dict)
    now: float = 1000.0
    step: int = 0
    samples: int = 0
    generation: int = 0
    version: int = 0
    plan: PlanDraft | None = None
    loss: Callable[[int, int], float] = lambda samples, batch: 2.0 / (1 + samples / 50_000)
    drafts: list[PlanDraft] = field(default_factory=list)
    spreads: list[float] = field(default_factory=list)
    _disturbance: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, planner: Planner, devices: Sequence[Device] = MIX, seed: int = 0, **more: Any) -> Job:
        job = cls(planner, {}, np.random.default_rng(seed), **more)
        job.join({f"w{i}": device for i, device in enumerate(devices)})
        return job

    def infos(self) -> list[WorkerInfo]:
        return [
            WorkerInfo(
                name, f"{name}-life", device.kind, memory_bytes=self.bytes_per_sample.get(device.kind, (0, 1))[0]
            )
            for name, device in self.devices.items()
        ]

    def join(self, devices: dict[str, Device], leave: Sequence[str] = ()) -> None:
        self.devices = {w: d for w, d in {**self.devices, **devices}.items() if w not in leave}
        self.generation += 1
        self._take_up(self.planner.set_workers(self.infos(), self.now))

    def _take_up(self, draft: PlanDraft) -> None:
        assert sum(draft.local_batches.values()) == draft.global_batch
        least = self.planner.spec.batch.min_share
        assert min(draft.local_batches.values()) >= (1 if least == 1 else least * draft.accumulation)
        assert set(draft.local_batches) == set(self.devices)
        self.plan = draft
        self.drafts.append(draft)
        self.version += 1
        self.planner.plan_running(self.version, self.generation, draft, self.step + 1, self.now)

    def compute_s(self, worker: str, plan: PlanDraft) -> float:
        """The worker's true mean seconds per step under a plan."""
        return self._seconds(worker, plan.local_batches[worker], plan.accumulation)

    def _seconds(self, worker: str, share: int, accumulation: int) -> float:
        return self.devices[worker].seconds(share / accumulation) * accumulation * self.slow.get(worker, 1.0)

    def _peak(self, worker: str, samples: float) -> int:
        memory, most = self.bytes_per_sample.get(self.devices[worker].kind, (0, 1))
        return round(memory * samples / most)

    def step_s(self, plan: PlanDraft) -> float:
        return max(self.compute_s(w, plan) for w in self.devices) + self.overhead_s

    def goodput(self, plan: PlanDraft) -> float:
        phi, initial = self.noise_scale(self.samples), self.planner.spec.batch.initial
        return plan.global_batch / self.step_s(plan) * (phi + initial) / (phi + plan.global_batch)

    def _noisy(self, worker: str) -> float:
        rho = self.correlation
        last = self._disturbance.get(worker, 0.0)
        fresh = float(self.rng.normal()) * math.sqrt(1 - rho * rho)
        self._disturbance[worker] = rho * last + fresh
        return math.exp(self.noise * self._disturbance[worker])

    def one_step(self) -> None:
        plan = self.plan
        assert plan is not None
        for worker, device in self.devices.items():
            ceiling = self.memory.get(device.kind)
            if ceiling is not None and math.ceil(plan.local_batches[worker] / plan.accumulation) > ceiling:
                micro = math.ceil(plan.local_batches[worker] / plan.accumulation)
                draft = self.planner.out_of_memory(worker, micro, self.now)
                if draft is not None:
                    self._take_up(draft)
                return
        left = self.epoch - self.samples % self.epoch
        shares = dict(plan.local_batches)
        if left < plan.global_batch:
            shares = {w: max(0, round(share * left / plan.global_batch)) for w, share in shares.items()}
        total = max(1, sum(shares.values()))
        compute = {w: self._seconds(w, shares[w], plan.accumulation) * self._noisy(w) for w in self.devices}
        slowest = max(compute.values())
        took = slowest + self.overhead_s * _positive(self.rng.normal(1.0, 0.1))
        passes = self.samples // self.epoch
        self.now += took
        self.step += 1
        self.samples += min(left, plan.global_batch)
        self.spreads.append(max(compute.values()) / min(compute.values()))
        phi = self.noise_scale(self.samples)
        whole = 1.0 + phi / total * float(self.rng.chisquare(20)) / 20
        loss = self.loss(self.samples, plan.global_batch) * _positive(self.rng.normal(1.0, 0.05))
        for worker, seconds in compute.items():
            share = shares[worker]
            local = 1.0 + phi / max(share, 1) * float(self.rng.chisquare(20)) / 20
            report = StepReport(
                step=self.step,
                plan_version=self.version,
                samples=self.samples,
                local_batch=share,
                compute_s=seconds,
                wait_s=slowest - seconds,
                step_s=took,
                peak_bytes=self._peak(worker, share / plan.accumulation),
                loss=loss if math.isfinite(loss) else None,
                diverged=not math.isfinite(loss),
                local_grad_sq=local,
                global_grad_sq=whole,
                epoch=passes,
            )
            self.planner.observe(worker, f"{worker}-life", self.generation, report, self.now)

    def run(self, seconds: float) -> None:
        end, poll = self.now + seconds, self.now
        while self.now < end:
            self.one_step()
            if self.now >= poll:
                poll = self.now + POLL_S
                self.poll()

    def poll(self) -> None:
        answer = self.planner.poll(self.now)
        if isinstance(answer, SearchRequest):
            answer = self.planner.complete(answer, run_search(answer), self.now)
        if answer is not None:
            for _ in range(2):
                self.one_step()
            self._take_up(answer)

    def kinds(self) -> list[str]:
        return [decision.kind for decision in self.planner.decisions]


def _positive(value: float) -> float:
    return max(0.1, value)
