"""All that the planner of one job knows, without what it does about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rex_operator.api.spec import RexJobSpec
from rex_operator.planning.communication import Exchanges, Law
from rex_operator.planning.cooldown import MATERIAL, Cooldown
from rex_operator.planning.devices import Devices
from rex_operator.planning.gauge import Gauge
from rex_operator.planning.history import History, apart, team_of
from rex_operator.planning.learning_rate import learning_rate_factor, settled, warmup_length
from rex_operator.planning.noise import NoiseEstimator
from rex_operator.planning.objective import Bill, Meter, check, price_per_hour, team_power, useful_samples
from rex_operator.planning.policies import Scene
from rex_operator.planning.split import Team, WorkerModel
from rex_operator.planning.state import PlannerState
from rex_operator.planning.types import PlanDraft, WorkerInfo
from rex_operator.planning.windows import GroupStep, Ingest
from rex_worker.protocol import StepReport

_LONGEST_WINDOW = 4096
_BILLED = 50
"""Latest steps that tell what the team draws."""
KEPT_FREE = 0.05
"""Of a device's memory: a trial that leaves less is at its edge, where longer inputs or fragments tip it over."""


class Knowledge:
    """Team, windows, devices, noise and history of one job; times are job time unless they are called ``now``."""

    def __init__(self, spec: RexJobSpec, saved: PlannerState | None, *, own_passes: bool = False) -> None:
        """``own_passes``: the policy gives each worker its own number of passes, where the script allows that."""
        validation = spec.planner.validation
        self._own_passes = own_passes
        self.spec = spec
        self.workers: dict[str, WorkerInfo] = {}
        self.ingest = Ingest(validation.warmup_steps, min(max(2 * validation.max_steps, 512), _LONGEST_WINDOW))
        self.noise = NoiseEstimator(saved.noise if saved else None)
        self.rate_noise = saved.rate_noise if saved else None
        self.adaptive = saved.adaptive if saved else False
        self.equal_passes = saved.equal_passes if saved else False
        self.devices = Devices(saved.devices if saved else None, spec.batch.min_share)
        self.gauge = Gauge(self.devices)
        self._billing: tuple[tuple[int, int, int], Meter] | None = None
        """A team's model is dear for a glance: made when something was learned, and kept until then."""
        self.history = History(saved.history if saved else ())
        self.exchanges = Exchanges(saved.exchanges if saved else ())
        self.latest: GroupStep | None = None
        self._plan: tuple[int, PlanDraft] | None = None
        """Generation and plan of the running window."""
        self.total_samples = 0
        """Of the whole run; 0: not known."""

    def team(self, workers: Sequence[WorkerInfo], at: float, now: float) -> None:
        """Take over a new membership: past step times are translated to it, present windows end.

        Raises ``CannotPlan`` where what the objective counts is not known of a worker.
        """
        check(self.spec, workers)
        before, count = self.models(at), len(self.workers)
        self.align(at)
        self.workers = {w.worker_id: w for w in workers}
        after = self.models(at)
        law = self._law()
        self.history.carry_over(before, after, law.at(count), team_of(workers), law.at(len(workers)))
        self.devices.forget(workers)
        self.ingest.members(workers, now)

    @property
    def own_passes(self) -> bool:
        """Whether each worker takes its own number of passes.

        A worker alone tells its noise scale by its passes. With a least share, one that holds less than twice as much
        could take some shares in no number of passes.
        """
        workers, least = self.workers.values(), self.spec.batch.min_share
        roomy = least == 1 or all(self.devices.limits(w).surely() >= 2 * least for w in workers)
        return self._own_passes and not self.equal_passes and len(workers) > 1 and roomy

    def models(self, at: float) -> list[WorkerModel] | None:
        """Return what is known of each worker of the team; None while no kind was measured."""
        return self.devices.models(tuple(self.workers.values()), at, own_passes=self.own_passes)

    def running(self, version: int, generation: int, draft: PlanDraft, step: int, now: float) -> None:
        """Begin the window of a plan; another learning rate takes no other time, so that its window goes on."""
        window, before, self._plan = self.ingest.window, self._plan, (generation, draft)
        if window is not None and before is not None and before[0] == generation and draft.takes_as_long_as(before[1]):
            whole_steps = self.ingest.go_on(version)
        else:
            known = before is not None and (before[0], before[1].global_batch) == (generation, draft.global_batch)
            self.gauge.restart(familiar=known)
            whole_steps = self.ingest.begin(version, generation, draft.local_batches, step, now)
        for whole in whole_steps:
            self._take(whole)

    def observe(self, worker_id: str, incarnation: str, generation: int, report: StepReport, now: float) -> None:
        """Take in one step of one worker."""
        whole = self.ingest.take(worker_id, incarnation, generation, report, now)
        if whole is not None:
            self._take(whole)

    def _take(self, whole: GroupStep) -> None:
        first = (whole.first_pass, whole.first_pass_sq)
        self.noise.observe(whole.local_batches, whole.local_grad_sq, whole.global_grad_sq, first)
        if self.latest is None or whole.step >= self.latest.step:
            self.latest = whole

    def noise_scale(self) -> float | None:
        """Return the noise scale in samples; None until it is known."""
        scale = self.noise.scale()
        return None if scale is None else scale.value

    def remaining_samples(self) -> int | None:
        """Return the samples that are left to train on; None where the end is not known."""
        if self.total_samples == 0 or self.latest is None:
            return None
        return max(0, self.total_samples - self.latest.samples)

    def useful(self, plan: PlanDraft) -> float:
        """Return the samples of a step weighted by their statistical efficiency (all of them for throughput)."""
        objective, initial = self.spec.planner.objective, self.spec.batch.initial
        return useful_samples(objective, plan.global_batch, self.noise_scale(), initial)

    def meter(self, at: float) -> Meter:
        """Return what counts the cost of steps by what is known now of the present team."""
        workers = tuple(self.workers.values())
        power = team_power(self.spec, workers, self.models(at))
        return Meter(self.spec.planner.objective, workers, power)

    def bill(self, plan: PlanDraft | None, goodput: float | None, at: float) -> Bill:
        """Return what the team costs under the running ``plan``, at ``goodput`` useful samples per second."""
        workers, window, watts = tuple(self.workers.values()), self.ingest.window, None
        steps = list(window.ripe()[-_BILLED:]) if window is not None else []
        if plan is not None and window is not None and steps and tuple(plan.local_batches) == window.workers:
            learned = (window.version, window.generation, self.gauge.learned)
            if self._billing is None or self._billing[0] != learned:
                self._billing = (learned, self.meter(at))
            meter = self._billing[1]
            seconds = np.array([s.step_s for s in steps])
            if meter.power is not None and seconds.sum() > 0:
                watts = float(meter.joules(plan, steps, seconds).sum() / seconds.sum())
        return Bill.of(price_per_hour(self.spec, workers), watts, goodput)

    def learning_rate_factor(self, batch: int) -> float:
        """Return the factor that goes with a batch, after a look at whether the noise scale it hangs on has moved."""

        def factor(noise_scale: float | None) -> float:
            spec = self.spec
            scaling, initial = spec.learning_rate.scaling, spec.batch.initial
            return learning_rate_factor(scaling, batch, initial, noise_scale, adaptive=self.adaptive)

        if batch != self.spec.batch.initial:
            self.rate_noise = settled(self.rate_noise, self.noise.scale(), factor)
        return factor(self.rate_noise)

    def warmup_samples(self, batch: int) -> int:
        """Return the samples over which the rate climbs under a batch."""
        rate = self.spec.learning_rate
        return warmup_length(rate.scaling, rate.warmup_samples, batch, self.spec.batch.initial)

    def fits(self, plan: PlanDraft) -> bool:
        """Return whether no share of the plan passes a known memory ceiling."""
        ceilings = {worker_id: self.devices.ceiling(worker) for worker_id, worker in self.workers.items()}
        return all(
            ceiling is None or plan.micro_batch(worker_id) <= ceiling
            for worker_id, ceiling in ceilings.items()
            if worker_id in plan.local_batches
        )

    def overfull(self) -> tuple[WorkerInfo, float] | None:
        """Return the worker of the running window with too little memory left, and what part of it was in use."""
        window = self.ingest.window
        latest = next(window.newest(), None) if window is not None else None
        if window is None or latest is None:
            return None
        for name, peak in zip(window.workers, latest.peak_bytes, strict=True):
            worker = self.workers.get(name)
            if worker is not None and worker.memory_bytes and peak > (1 - KEPT_FREE) * worker.memory_bytes:
                return worker, float(peak / worker.memory_bytes)
        return None

    def speeds(self, at: float) -> dict[str, float]:
        """Return each worker's slowness, as known now; none while no kind was measured."""
        return {model.worker_id: model.slowness for model in self.models(at) or ()}

    def moved(self, since: Mapping[str, float], at: float) -> bool:
        """Return whether a worker's slowness is clearly another one than it was ``since``."""
        now = self.speeds(at)
        return bool(now) and now.keys() == since.keys() and apart(now, since) > MATERIAL

    def slower(self, before: PlanDraft, since: Mapping[str, float], after: PlanDraft, at: float) -> float | None:
        """Return how many times as long a step of ``after`` takes now as one of ``before`` at slownesses ``since``.

        By the models, which know the new speeds already; None where they cannot tell.
        """
        models = self.models(at) or []
        names, team = [m.worker_id for m in models], Team(models)
        if not models or not before.local_batches.keys() == after.local_batches.keys() == since.keys() == set(names):
            return None
        now, then = (
            team.times([plan.local_batches[w] for w in names], [plan.passes_of(w) for w in names])
            for plan in (after, before)
        )
        then = then * np.array([since[m.worker_id] / m.slowness for m in models])
        return float((now.max() + self.gauge.overhead_s) / (then.max() + self.gauge.overhead_s))

    def remember(self, plan: PlanDraft, at: float) -> None:
        """Keep the running plan's step time for the search, and all that were kept at the speeds of now."""
        self.align(at)
        if self.gauge.learned:
            gauge, per_pass = self.gauge, sum(share / plan.passes_of(w) for w, share in plan.local_batches.items())
            self.history.put(plan.global_batch, plan.accumulation, gauge.step_s, gauge.step_error, at, per_pass)
            if gauge.cost is not None:
                self.exchanges.put(gauge.cost)

    def align(self, at: float) -> None:
        """Translate the step times that were measured to the workers' speeds of now."""
        self.history.align(self.models(at), self._law().at(len(self.workers)))

    def _law(self) -> Law:
        """Return how a step's cost beside computing depends on plan and team, through what was measured last."""
        law, cost = self.exchanges.law(), self.gauge.cost
        return law if cost is None else law.through(cost)

    def scene(self, running: PlanDraft | None, cooldown: Cooldown, at: float) -> Scene:
        """Return what a policy gets to see."""
        window, law = self.ingest.window, self._law()
        return Scene(
            spec=self.spec,
            workers=tuple(self.workers.values()),
            devices=self.devices,
            cooldown=cooldown,
            at=at,
            running=running,
            names=window.workers if window is not None else (),
            steps=window.ripe() if window is not None else (),
            early=self.gauge.early or (window.ripe() if window is not None else ()),
            epoch=self.latest.epoch if self.latest is not None else 0,
            step_s=self.gauge.step_s,
            overhead_s=self.gauge.overhead_s,
            communication=law.at(len(self.workers)),
            law=law,
            error=self.gauge.error,
            drifting=self.gauge.drifting,
            noise=self.noise.scale(),
            measured=self.history.measured(at),
            remaining_samples=self.remaining_samples(),
            own_passes=self.own_passes,
        )
