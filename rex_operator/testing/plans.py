"""Checks of the plans themselves: whatever happens, each is one that all workers can run.

The simulated job holds every plan that it takes up against the promises of plans and stops at the first that breaks
one, so these checks are situations; what they demand is in their docstrings.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rex_operator.planning import CannotPlan, Planner, WorkerInfo
from rex_operator.planning.cooldown import Cooldown
from rex_operator.planning.devices import Devices
from rex_operator.planning.policies import Scene
from rex_operator.simulation.devices import Bent
from rex_operator.testing.scenes import FAST, MIDDLE, MIX, SLOW, Make, demand, job, spec, train
from rex_worker.protocol import StepReport


def sums_and_bounds(make: Make) -> None:
    """Shares are whole, sum to the batch and are at least 1; the batch stays within the job's bounds."""
    for wanted in (
        spec(initial=64, low=48, high=96),
        spec(initial=7, low=5, high=11),
        spec(initial=64, low=64, high=64),
    ):
        for draft in train(job(make, wanted=wanted), 100).drafts:
            odd = {w: share for w, share in draft.local_batches.items() if not isinstance(share, int)}
            demand(not odd, f"shares are whole numbers, not {odd}")


def any_batch(make: Make) -> None:
    """Asked for any batch, passes, ceilings and least share: exact shares within them, or ``CannotPlan``."""
    rng = np.random.default_rng(1)
    for _ in range(80):
        batch, passes, least = int(rng.integers(1, 400)), int(rng.integers(1, 5)), int(rng.integers(1, 4))
        bounds = spec(initial=512, low=1, high=1024, min_share=least)
        ceilings = [int(c) if c < 120 else None for c in rng.integers(1, 240, int(rng.integers(1, 7)))]
        team = tuple(WorkerInfo(f"w{i}", f"life-{i}", f"d{i % 3}", most) for i, most in enumerate(ceilings))
        scene = Scene(bounds, team, Devices(None, least), Cooldown(1.0), 0.0)
        policy = make()
        try:
            shares = policy.shares(scene, batch, passes)
        except CannotPlan:
            continue
        own = policy.passes(scene, shares, passes)
        asked = f"batch {batch} in {passes} passes, ceilings {ceilings}, least share {least}"
        demand(set(shares) == {w.worker_id for w in team}, f"{asked}: shares for {sorted(shares)}")
        demand(sum(shares.values()) == batch, f"{asked}: shares {shares} sum to {sum(shares.values())}")
        for worker in team:
            share, most, runs = shares[worker.worker_id], worker.max_local_batch, own.get(worker.worker_id, passes)
            gets = f"{asked}: {worker.worker_id} gets {share} in {runs}"
            demand(1 <= runs <= passes, gets)
            demand(share >= (1 if least == 1 else least * runs), gets)
            demand(most is None or math.ceil(share / runs) <= most, gets)


def least_share(make: Make) -> None:
    """No worker gets less than ``batch.minShare`` in a pass, though the slowest should for its speed."""
    snail = Bent("snail", 0.05, 0.02)
    train(job(make, (FAST, FAST, FAST, snail), spec(min_share=6)), 200)


def declared_ceilings(make: Make) -> None:
    """No pass asks more of a device than the job says that it holds."""
    small = Bent("small", FAST.fixed, FAST.each, most=18)
    train(job(make, (small, small, MIDDLE, SLOW), spec(initial=128)), 150)


def hidden_ceilings(make: Make) -> None:
    """A device that ran out of memory is soon asked for less, and the job trains on."""
    running = train(job(make, memory={"fast": 12, "slow": 9}), 250)
    demand(running.lost_steps <= 12, f"{running.lost_steps} of 250 steps ran out of memory")
    demand(running.samples > 0, "no step was done")


def one_worker(make: Make) -> None:
    """A worker alone gets the whole batch, and nobody is compared with anybody."""
    running = train(job(make, (MIDDLE,)), 200)
    demand(running.step >= 200, f"only {running.step} steps were done")


def team_changes(make: Make) -> None:
    """Workers come, go and are replaced, down to one and up again, and each plan is for who is there."""
    running = train(job(make), 80)
    running.join({}, leave=["w1"])
    train(running, 60).join({"w1": MIDDLE, "w4": SLOW}, leave=["w0"])
    train(running, 60).join({}, leave=["w1", "w2", "w3"])
    train(running, 60).join({f"w{i}": MIX[i % 4] for i in range(5, 11)})
    train(running, 60)


class _Gaps(Planner):
    """A planner whose reports lack what reports may lack."""

    _count = 0

    def observe(self, worker_id: str, incarnation: str, generation: int, report: StepReport, now: float) -> None:
        """Take in a report with something missing."""
        self._count += 1
        lacking: dict[str, Any] = {"loss": None, "local_grad_sq": None, "global_grad_sq": None, "comm_s": None}
        if self._count % 5 == 0:
            lacking |= {"compute_s": 0.0, "wait_s": 0.0}
        if self._count % 17 == 0:
            lacking["step_s"] = 0.0
        if self._count % 23 == 0:
            lacking["diverged"] = True
        super().observe(worker_id, incarnation, generation, report.model_copy(update=lacking), now)


def absent_figures(make: Make) -> None:
    """Reports without losses and gradients, with times of zero and diverged losses do no harm."""
    running = train(job(make, planner=_Gaps), 250)
    for decision in running.planner.decisions:
        decision.model_dump_json()  # no NaN, no infinity
