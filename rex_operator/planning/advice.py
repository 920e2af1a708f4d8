"""Which workers do not pay for themselves?

Where the price or the energy of a job counts, its fastest team need not be its best: a slow device that costs half as
much as a fast one, and does a tenth of its work, makes every useful sample dearer. The planner cannot send workers
away, that is the cluster's business; it can work out what a useful sample costs with and without them, each team at its
own best batch and split by the measured curves, and say so.

Cheapest of all is nearly always the single cheapest worker, which takes for ever: every exchange of gradients is saved.
Nobody is served by that advice, so a cut must save a larger share of the cost than it adds to the time, which is to say
that cost x time falls (the energy-delay product of circuit design, for a price as well as for joules). A worker that
shortens the job by more than it makes it dearer pays for itself.

Workers of a pool are alike, so a team is a number of workers per pool. Starting from the present team, the cut with the
least cost x time is made, the slowest of a pool's workers first, until none wins the practical margin. Pure, and slow
enough (some hundred milliseconds for large teams) to run with a search.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rex_operator.api.spec import RexJobSpec
from rex_operator.planning.communication import Communication, Law
from rex_operator.planning.objective import powers, prices, useful_of
from rex_operator.planning.power import DevicePower, TeamPower
from rex_operator.planning.prediction import in_own_passes, predict, sizes_between, team_joules
from rex_operator.planning.split import MOST_PASSES, Team, WorkerModel, own_passes
from rex_operator.planning.types import WorkerInfo

_PER_DOUBLING = 2
"""Batches that are compared are a factor 2^(1/2) apart: an optimum is flat."""
_MOST_CUTS = 8


@dataclass(frozen=True, slots=True)
class Floor:
    """Of a pool: how few workers it may have, and how many come and go together."""

    least: int = 0
    together: int = 1


@dataclass(frozen=True, slots=True)
class TeamQuestion:
    """What is to be known beside the search's request. The tuples are in the order of its models."""

    pools: tuple[str, ...]
    """Each worker's pool."""
    floors: Mapping[str, Floor]
    workers_min: int
    prices: tuple[float, ...] = ()
    """Each worker's price per hour; empty: energy is what counts."""
    powers: tuple[DevicePower, ...] = ()
    """Each worker's device; empty: price is what counts."""
    law: Law | None = None
    """How a step's cost beside computing depends on the team; None: taken to be the same for all."""

    def of(self, rows: Sequence[int]) -> tuple[tuple[float, ...], tuple[DevicePower, ...]]:
        """Return prices and powers of these workers."""
        return tuple(self.prices[i] for i in rows if self.prices), tuple(self.powers[i] for i in rows if self.powers)


@dataclass(frozen=True, slots=True)
class Terms:
    """Under what conditions teams are compared."""

    overhead_s: float | Communication
    """Seconds of a step beside computing, for teams of any size where no law is known."""
    batch_min: int
    batch_max: int
    batch_initial: int
    min_share: int
    noise_scale: float | None
    margin: float
    """Least relative saving for which a cut is worth a word."""


@dataclass(frozen=True, slots=True)
class Smaller:
    """A smaller team, against the present one."""

    without: tuple[str, ...]
    """Ids of the workers that it lacks."""
    saving: float
    """Relative: 0.12 = a useful sample costs 12 % less."""
    slower: float
    """Relative: 0.04 = it takes 4 % longer; negative: it even takes less."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A smaller team that pays, and what lies on the way there."""

    counts: Mapping[str, int]
    """Workers that each pool should have, where it should have fewer."""
    steps: tuple[Smaller, ...]
    """At least one; each lacks more workers than the one before, and the last is the team in question."""
    by_price: bool

    @property
    def best(self) -> Smaller:
        """The team in question."""
        return self.steps[-1]


@dataclass(frozen=True, slots=True)
class _Offer:
    spent: float
    """Price per hour x hours, or joules, of a useful sample at the team's best plan."""
    seconds: float
    """Seconds of a useful sample at that plan."""

    def beats(self, other: _Offer, margin: float) -> bool:
        """Return whether it is cheaper, and by more than it is slower, both by the margin."""
        gain = 1 + margin
        return self.spent * gain <= other.spent and self.product * gain <= other.product

    @property
    def product(self) -> float:
        """Cost x time."""
        return self.spent * self.seconds


def team_question(spec: RexJobSpec, workers: Sequence[WorkerInfo], law: Law | None = None) -> TeamQuestion | None:
    """Return what there is to ask about the team; None where neither a price nor energy is what counts.

    The question is the same for workers whose pool is not known by name: their kind of device stands for it.
    """
    objective, names = spec.planner.objective, {pool.name for pool in spec.pools}
    asked = prices(spec, workers) if objective == "cost" else ()
    drawn = powers(spec, workers) if objective == "energy" else ()
    if not asked and not drawn:
        return None
    return TeamQuestion(
        pools=tuple(w.pool if w.pool in names else w.device for w in workers),
        floors={pool.name: Floor(pool.min_workers, pool.devices_per_pod) for pool in spec.pools},
        workers_min=spec.workers.min,
        prices=asked,
        powers=drawn,
        law=law,
    )


def advise(models: Sequence[WorkerModel], question: TeamQuestion, terms: Terms) -> Advice | None:
    """Return the smaller team that pays better than the present one; None if none does by the margin."""
    present = list(range(len(models)))
    first = _offer(models, present, question, terms)
    if first is None or first.spent <= 0:
        return None
    team, offer, steps = present, first, list[Smaller]()
    for _ in range(_MOST_CUTS):
        made = [(_offer(models, rows, question, terms), rows) for rows in _cuts(models, team, question)]
        better = [(other, rows) for other, rows in made if other is not None and other.beats(offer, terms.margin)]
        if not better:
            break
        offer, team = min(better, key=lambda pair: (pair[0].product, pair[0].seconds))
        gone = tuple(models[i].worker_id for i in present if i not in set(team))
        steps.append(Smaller(gone, 1 - offer.spent / first.spent, offer.seconds / first.seconds - 1))
    if not steps:
        return None
    kept = [question.pools[i] for i in team]
    cut = {question.pools[i] for i in present if i not in set(team)}
    return Advice({pool: kept.count(pool) for pool in sorted(cut)}, tuple(steps), bool(question.prices))


def _cuts(models: Sequence[WorkerModel], team: Sequence[int], question: TeamQuestion) -> Iterator[list[int]]:
    """Give teams with fewer workers of one pool: one pod fewer, two, four ..., and as few as there may be."""
    for pool in sorted({question.pools[i] for i in team}):
        floor = question.floors.get(pool, Floor())
        members = sorted((i for i in team if question.pools[i] == pool), key=lambda i: -models[i].slowness)
        spare = min(len(members) - floor.least, len(team) - max(1, question.workers_min)) // floor.together
        sizes = {2**i for i in range(spare.bit_length())} | {spare} if spare > 0 else set()
        for pods in sorted(sizes):
            gone = set(members[: pods * floor.together])
            yield [i for i in team if i not in gone]


def _offer(models: Sequence[WorkerModel], rows: Sequence[int], question: TeamQuestion, terms: Terms) -> _Offer | None:
    """Return what a useful sample costs this team at best; None if no batch suits it."""
    chosen = [models[i] for i in rows]
    plans = plans_of(chosen, terms)
    beside = terms.overhead_s if question.law is None else question.law.at(len(rows))
    seconds = predict(chosen, beside, plans, terms.min_share) if plans else np.empty(0)
    fits = np.isfinite(seconds)
    if not fits.any():
        return None
    plans, seconds = [p for p, ok in zip(plans, fits, strict=True) if ok], seconds[fits]
    asked, drawn = question.of(rows)
    if asked:
        spent = seconds * sum(asked) / 3600
    else:
        spent = team_joules(chosen, TeamPower(chosen, drawn), beside, plans, seconds, terms.min_share)
    useful = useful_of(np.array([b for b, _ in plans], dtype=np.float64), terms.noise_scale, terms.batch_initial)
    best = np.lexsort((seconds / useful, spent / useful))[0]  # of several that cost nothing the fastest
    return _Offer(float(spent[best] / useful[best]), float(seconds[best] / useful[best]))


def plans_of(models: Sequence[WorkerModel], terms: Terms) -> list[tuple[int, int]]:
    """Return the plans that a team may be judged by: sizes over the whole allowed range, in the fewest passes or so."""
    least = max(terms.batch_min, terms.min_share * len(models))
    room, plans = Team(models).room(1), []
    sizes = sizes_between(least, terms.batch_max, _PER_DOUBLING)
    if own_passes(models):
        return in_own_passes(models, sizes, terms.min_share)
    for size in sorted(sizes):
        fewest = max(1, math.ceil(size / room))
        plans += [
            (size, passes)
            for passes in sorted({fewest, 2 * fewest})
            if passes <= MOST_PASSES and (passes == fewest or size >= passes * terms.min_share * len(models))
        ]
    return plans
