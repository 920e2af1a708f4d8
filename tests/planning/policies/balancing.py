"""A balancer by itself, without the planner: it sees steps under its shares and answers with other shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from rex_operator.planning import PlanDraft, WorkerInfo
from rex_operator.planning.cooldown import Cooldown
from rex_operator.planning.devices import Devices
from rex_operator.planning.noise import NoiseScale
from rex_operator.planning.policies import Policy, Rebalance, Scene
from rex_operator.planning.windows import GroupStep
from tests.planning.simulated import spec

NONE = np.zeros(1)
Seconds = Callable[[str, float], float]
"""What a worker takes for so many samples."""


def line(fixed: float, each: float) -> Callable[[float], float]:
    return lambda samples: fixed + each * samples


def step(number: int, compute: Sequence[float] | npt.NDArray[np.float64], epoch: int = 0) -> GroupStep:
    seconds = np.asarray(compute, dtype=np.float64)
    return GroupStep(
        number, number, float(seconds.max()), seconds, NONE, NONE, NONE, NONE, NONE, 0.0, None, False, True, epoch
    )


class Bench:
    """Runs one policy over a team of devices; a plan that it answers with is taken up at once."""

    def __init__(
        self,
        policy: Policy,
        devices: Mapping[str, Callable[[float], float]],
        batch: int,
        *,
        steps_per_epoch: int = 20,
        caps: Mapping[str, int] | None = None,
        kind: str = "any",
        noise: float = 0.0,
        low: int = 1,
        high: int = 1 << 20,
    ) -> None:
        self.policy, self.devices, self.spec = policy, dict(devices), spec(batch, low, high)
        self.workers = tuple(WorkerInfo(name, "life", kind, (caps or {}).get(name)) for name in devices)
        self.known = Devices()
        self.rng, self.noise = np.random.default_rng(0), noise
        self.steps_per_epoch, self.number = steps_per_epoch, 0
        self.steps: list[GroupStep] = []
        self.noise_scale: NoiseScale | None = None
        self.plan: PlanDraft | None = None
        self.policy.restarted()
        self.take_up(self.policy.shares(self.scene(), batch, 1))

    def take_up(self, shares: Mapping[str, int]) -> None:
        assert sum(shares.values()) == self.spec.batch.initial
        assert min(shares.values()) >= 1
        self.plan, self.steps = PlanDraft(self.spec.batch.initial, 1, dict(shares), 1.0), []

    @property
    def shares(self) -> dict[str, int]:
        assert self.plan is not None
        return dict(self.plan.local_batches)

    def times(self) -> npt.NDArray[np.float64]:
        return np.array([self.devices[name](share) for name, share in self.shares.items()])

    @property
    def effect(self) -> float:
        """LBB's straggler effect: how uneven the times are."""
        times = self.times()
        return float(np.ptp(times) / times.mean())

    def scene(self) -> Scene:
        return Scene(
            spec=self.spec,
            workers=self.workers,
            devices=self.known,
            cooldown=Cooldown(1.0),
            at=float(self.number),
            running=self.plan,
            names=tuple(self.devices) if self.plan is not None else (),
            steps=self.steps,
            epoch=self.number // self.steps_per_epoch,
            noise=self.noise_scale,
        )

    def run(self, steps: int = 12) -> Rebalance | None:
        """Let so many steps pass, and ask."""
        for _ in range(steps):
            factor = np.exp(self.noise * self.rng.normal(size=len(self.devices)))
            self.steps.append(step(self.number, self.times() * factor, self.number // self.steps_per_epoch))
            self.number += 1
        found = self.policy.rebalance(self.scene())
        if found is not None:
            assert found.shares != self.shares, "a move changes something"
            self.take_up(found.shares)
        return found

    def rounds(self, count: int, steps: int = 12) -> list[dict[str, int]]:
        """Return the shares after each of so many rounds."""
        seen = []
        for _ in range(count):
            self.run(steps)
            seen.append(self.shares)
        return seen
