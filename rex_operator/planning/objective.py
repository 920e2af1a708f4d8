"""What is a plan good for? The one place that says what is maximised.

Useful samples per something: the samples of a step, weighted by their statistical efficiency (all of them alike for
`throughput`), over the seconds that the step takes, the price of those seconds, or the joules that they draw. With one
given team a price is a constant factor of time, so that `cost` prefers the same batch and the same shares as `goodput`
does, bit for bit; the two differ in which workers should take part (`advice`). Energy differs in the batch, too: a
device that is better filled draws more, but not as much more as it does more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rex_operator.api.spec import Objective, Power, RexJobSpec
from rex_operator.api.watts import published
from rex_operator.planning.curves import Array
from rex_operator.planning.noise import efficiency
from rex_operator.planning.power import DevicePower, TeamPower
from rex_operator.planning.split import WorkerModel
from rex_operator.planning.statistics import Sample
from rex_operator.planning.types import CannotPlan, PlanDraft, WorkerInfo
from rex_operator.planning.windows import GroupStep


def weighs_samples(objective: Objective) -> bool:
    """Return whether samples count by their statistical efficiency, so that a noise scale is needed to compare."""
    return objective != "throughput"


def useful_samples(objective: Objective, batch: int, noise_scale: float | None, initial: int) -> float:
    """Return the useful samples of a step; all of them while the noise scale is unknown."""
    if not weighs_samples(objective) or noise_scale is None:
        return float(batch)
    return batch * efficiency(noise_scale, batch, initial)


def useful_of(batch: Array, noise_scale: float | None, initial: int) -> Array:
    """Return the useful samples of steps of these batches; all of them without a noise scale."""
    return batch if noise_scale is None else batch * ((noise_scale + initial) / (noise_scale + batch))


def log_objective(batch: Array, spent: Array, noise_scale: float | None, initial: int) -> Array:
    """Return the logarithm of useful samples per ``spent`` (seconds or joules of a step); noise scale None: of all."""
    wasted = 0.0 if noise_scale is None else np.log((noise_scale + batch) / (noise_scale + initial))
    return np.asarray(np.log(batch) - wasted - np.log(spent))


@dataclass(frozen=True, slots=True)
class Rates:
    """What one worker costs; None: not known."""

    price_per_hour: float | None = None
    power: DevicePower | None = None


def rates(spec: RexJobSpec, workers: Sequence[WorkerInfo]) -> list[Rates]:
    """Return what each worker costs: by its pool, else by a pool of its kind of device, else as published."""
    alike = {(worker.pool, worker.device) for worker in workers}
    found = {kind: _rates(spec, *kind) for kind in alike}
    return [found[worker.pool, worker.device] for worker in workers]


def _rates(spec: RexJobSpec, name: str, device: str) -> Rates:
    pools = sorted(spec.pools, key=lambda pool: pool.name != name)
    pools = [pool for pool in pools if pool.name == name or pool.device == device]
    price = next((pool.price_per_hour for pool in pools if pool.price_per_hour is not None), None)
    told = next((pool.power for pool in pools if pool.power is not None), None)
    return Rates(price, _power(told, device))


def _power(told: Power | None, device: str) -> DevicePower | None:
    if told is not None:
        points = tuple((float(p.local_batch), p.watts) for p in told.measured)
        return DevicePower(told.idle_watts, told.max_watts, points)
    known = published(device)
    return None if known is None else DevicePower(known.idle, known.max_watts)


def prices(spec: RexJobSpec, workers: Sequence[WorkerInfo]) -> tuple[float, ...]:
    """Return each worker's price for an hour; empty unless that of all of them is known."""
    known = tuple(found.price_per_hour for found in rates(spec, workers) if found.price_per_hour is not None)
    return known if len(known) == len(workers) else ()


def price_per_hour(spec: RexJobSpec, workers: Sequence[WorkerInfo]) -> float | None:
    """Return the price of the team for an hour; None unless that of each worker is known."""
    known = prices(spec, workers)
    return sum(known) if known else None


def powers(spec: RexJobSpec, workers: Sequence[WorkerInfo]) -> tuple[DevicePower, ...]:
    """Return what is known of each worker's draw; empty unless it is of all of them."""
    known = tuple(found.power for found in rates(spec, workers) if found.power is not None)
    return known if len(known) == len(workers) else ()


def team_power(
    spec: RexJobSpec, workers: Sequence[WorkerInfo], models: Sequence[WorkerModel] | None
) -> TeamPower | None:
    """Return what the team draws; None while no device was measured, or if a device's power is not known."""
    known = powers(spec, workers)
    return TeamPower(models, known) if models and known else None


def check(spec: RexJobSpec, workers: Sequence[WorkerInfo]) -> None:
    """Raise ``CannotPlan`` when the job is to save energy and nobody knows what a worker's device draws."""
    if spec.planner.objective != "energy":
        return
    costs = zip(workers, rates(spec, workers), strict=True)
    unknown = next((worker for worker, found in costs if found.power is None), None)
    if unknown is not None:
        raise CannotPlan(
            f"planner.objective energy: it is not known what {unknown.device or 'the device'} of {unknown.worker_id}"
            " draws; set power (idleWatts, maxWatts) of a pool of that device, or choose goodput"
        )


@dataclass(frozen=True, slots=True)
class Bill:
    """What the present team costs, as it runs; None: not known."""

    price_per_hour: float | None = None
    price_per_million: float | None = None
    """Of useful samples."""
    watts: float | None = None
    joules_per_sample: float | None = None
    """Per useful sample."""

    @classmethod
    def of(cls, price: float | None, watts: float | None, goodput: float | None) -> Bill:
        """Return the bill at a rate of ``goodput`` useful samples per second."""
        if not goodput:
            return cls(price, None, watts, None)
        million = None if price is None else price / 3600 / goodput * 1e6
        return cls(price, million, watts, None if watts is None else watts / goodput)


@dataclass(frozen=True)
class Meter:
    """Counts what steps cost, frozen as of one moment, so that what is learned meanwhile cannot decide a trial."""

    objective: Objective
    workers: tuple[WorkerInfo, ...] = ()
    power: TeamPower | None = None
    """In the order of ``workers``; None: not known, or of no interest."""

    def spent(self, plan: PlanDraft, steps: Sequence[GroupStep]) -> Sample:
        """Return the seconds of each of these steps of ``plan``, or the joules where energy is the objective."""
        step_s = np.array([s.step_s for s in steps])
        return step_s if self.objective != "energy" or not steps else self.joules(plan, steps, step_s)

    def joules(self, plan: PlanDraft, steps: Sequence[GroupStep], step_s: Sample) -> Sample:
        """Return the joules of each of these steps of ``plan``; as many as seconds while no power is known."""
        if self.power is None:
            return step_s
        place = {name: i for i, name in enumerate(plan.local_batches)}  # as the steps' arrays are ordered
        order = [place[worker.worker_id] for worker in self.workers]
        names = [worker.worker_id for worker in self.workers]
        busy = self.power.busy([plan.local_batches[w] for w in names], [plan.passes_of(w) for w in names])
        return self.power.joules(busy, np.array([s.compute_s for s in steps])[:, order], step_s)
