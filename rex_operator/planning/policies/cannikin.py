"""Cannikin's rule: shares by OptPerf, and once per pass over the data the batch with the best goodput under them.

The first pass is shared evenly. The second gives each node a share by its speed in the first one, which is good in
itself and gives every node a second size; from then on each node has its two lines, and the shares of any batch, its
step time and so its goodput are computed. As in AdaptDL, on which it is built, another batch is taken, without a trial,
for more than 1.05 times the goodput, and may be from the second pass on: until a node has run two sizes, half of its
time counts as fixed, as AdaptDL has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from rex_operator.planning.noise import efficiency
from rex_operator.planning.optperf import Node, OptPerf
from rex_operator.planning.policies.adaptdl import CANDIDATES, THRESHOLD
from rex_operator.planning.policies.base import About, Adoption, Base, Rebalance, Scene
from rex_operator.planning.policies.following import EpochEnd, mean_times, running_shares
from rex_operator.planning.policies.node_lines import ExchangeBook, NodeLines
from rex_operator.planning.rounding import settle
from rex_operator.planning.split import even_split
from rex_operator.planning.types import CannotPlan, PlanDraft
from rex_operator.planning.windows import GroupStep

WORTHWHILE = 0.01
"""Shares move when the step is predicted to be shorter by this part: whole samples wander with the noise otherwise."""
_SURE = 2
"""Sizes behind a line."""
_SHORTEST = 1e-9
"""Seconds; clocks tell nothing shorter."""


class Cannikin(Base):
    """OptPerf shares; at the start of a pass the batch of best goodput, if it is better by more than 5 %."""

    about: ClassVar[About] = About(
        name="cannikin",
        title="Cannikin",
        reference="Nie, Maghakian, Liu: Cannikin, Middleware 2024, pp. 299-312 (arXiv 2402.05302)",
        rule=(
            "Lines of load and forward, and of backward time per node, fitted each pass; shares and step time by"
            " OptPerf; at the start of each pass the batch with the best goodput, if more than 1.05 times the present."
        ),
        ours=(
            "The noise scale is REX's pooled estimate instead of the paper's weights. Two thirds of a worker's compute"
            " are taken for the backward pass; the exchange is told from the rest of the step. A worker whose time"
            " leaves its line has the line scaled; newcomers take their kind's; shares move for 1 % or more."
            " Goodput is the only objective."
        ),
        changes=("shares", "batch"),
        exempt={"keeps-shares-on-noise": "shares move for a predicted 1 %, be that a matter of noise or not"},
    )

    def __init__(self) -> None:
        self._lines = NodeLines()
        self._exchanges = ExchangeBook()
        self._ends = EpochEnd()
        self._team: frozenset[str] = frozenset()
        self._adoption: Adoption | None = None

    def shares(self, scene: Scene, batch: int, accumulation: int) -> dict[str, int]:
        """Return shares by OptPerf; by speed, or even, until each node has run two sizes. Raises ``CannotPlan``."""
        nodes = self._nodes(scene)
        if nodes is None:
            return even_split(scene.ceilings(), batch, accumulation, scene.spec.batch.min_share)
        if self._known(scene):
            return self._optimum(scene, nodes, accumulation).shares(batch)
        return self._by_speed(scene, batch, accumulation)

    def rebalance(self, scene: Scene) -> Rebalance | None:
        """Return better shares when a pass has ended, unless another batch is taken (see `adopt`)."""
        plan, steps = scene.running, self._ends.passed(scene)
        times = mean_times(steps)
        if plan is None or times is None:
            return None
        self._learn(scene, plan, steps, times)
        nodes = self._nodes(scene)
        if nodes is None:
            return None
        slowest = scene.names[int(np.argmax(times))]
        spread = float(times.max() / times.min())
        self._adoption = self._better_batch(scene, plan, nodes)
        if self._adoption is not None:
            return None
        try:
            if not self._known(scene):
                wanted = self._by_speed(scene, plan.global_batch, plan.accumulation)
                return Rebalance(wanted, slowest, spread) if wanted != dict(plan.local_batches) else None
            optimum = self._optimum(scene, nodes, plan.accumulation)
            wanted = optimum.shares(plan.global_batch)
        except CannotPlan:
            return None
        now = optimum.times([plan.local_batches[w.worker_id] for w in scene.workers])
        then = optimum.times([wanted[w.worker_id] for w in scene.workers])
        gain = float(now.max() / then.max()) - 1
        return Rebalance(wanted, slowest, spread, gain) if gain >= WORTHWHILE else None

    def adopt(self, scene: Scene) -> Adoption | None:
        """Return the batch that was found at the end of the pass, if any."""
        found, self._adoption = self._adoption, None
        return found

    def _learn(self, scene: Scene, plan: PlanDraft, steps: Sequence[GroupStep], times: np.ndarray) -> None:
        team = frozenset(f"{w.worker_id}/{w.incarnation}" for w in scene.workers)
        if team != self._team:
            self._team = team
            self._exchanges.forget()
        workers = {w.worker_id: w for w in scene.workers}
        for name, share, seconds in zip(scene.names, running_shares(scene), times, strict=True):
            pace = max(float(seconds), _SHORTEST) / plan.accumulation
            self._lines.learn(workers[name], float(share) / plan.accumulation, pace)
        slowest = float(times.max()) / plan.accumulation
        beside = float(np.mean([s.step_s - s.compute_s.max() for s in steps]))
        self._exchanges.learn(plan.global_batch, slowest, beside if np.isfinite(beside) else 0.0)

    def _nodes(self, scene: Scene) -> list[Node] | None:
        self._lines.team(scene.workers)
        return self._lines.nodes(scene.workers, scene.ceilings())

    def _known(self, scene: Scene) -> bool:
        """Return whether each node has run sizes enough for a line."""
        return all(self._lines.sizes(w) >= _SURE for w in scene.workers)

    def _optimum(self, scene: Scene, nodes: list[Node], passes: int) -> OptPerf:
        return OptPerf(nodes, self._exchanges.exchange(), passes, scene.spec.batch.min_share)

    def _by_speed(self, scene: Scene, batch: int, accumulation: int) -> dict[str, int]:
        speeds = {w.worker_id: 1 / (self._lines.pace(w) or 1.0) for w in scene.workers}
        total = sum(speeds.values())
        wanted = {name: batch * speed / total for name, speed in speeds.items()}
        return settle(wanted, scene.ceilings(), batch, accumulation, scene.spec.batch.min_share)

    def _better_batch(self, scene: Scene, plan: PlanDraft, nodes: list[Node]) -> Adoption | None:
        """Return the best of the batches, if its goodput is predicted to pass the threshold."""
        bounds, phi = scene.spec.batch, scene.noise_scale
        low = max(bounds.initial, bounds.min_share * len(nodes))
        if phi is None or low > bounds.max:
            return None
        batches = np.unique(np.rint(np.geomspace(low, bounds.max, CANDIDATES)))
        room = sum(float("inf") if n.cap is None else n.cap for n in nodes)
        passes = np.maximum(np.ceil(batches / room), 1).astype(int)
        seconds = np.full(batches.shape, np.nan)
        for count in np.unique(passes):
            rows = passes == count
            seconds[rows] = self._optimum(scene, nodes, int(count)).seconds(batches[rows])
        useful = np.array([size * efficiency(phi, size, bounds.initial) for size in batches])
        own = self._optimum(scene, nodes, plan.accumulation).seconds(np.array([float(plan.global_batch)]))[0]
        now = plan.global_batch * efficiency(phi, plan.global_batch, bounds.initial) / own
        goodput = np.where(np.isfinite(seconds), useful / seconds, 0.0)
        best = int(np.argmax(goodput))
        ratio = float(goodput[best] / now) if np.isfinite(now) else float("inf")
        if not ratio > THRESHOLD or not goodput[best] > 0:
            return None
        batch = int(batches[best])
        why = f"A pass begins: batch {batch} is the best under OptPerf (noise scale {phi:.3g} samples)"
        if not np.isfinite(ratio):
            return Adoption(batch, int(passes[best]), f"{why}; {plan.global_batch} does not fit in memory.")
        return Adoption(batch, int(passes[best]), f"{why}, {ratio:.2f} times the goodput of now.", ratio - 1)
