"""Which batch is worth a trial next, if any?

Batches are few (some dozens of geometrically spaced sizes times a few accumulation counts) and trials are dear, so all
candidates are enumerated and scored instead of sampled: the curves predict each one's step time at its best split, the
surrogate says how sure that is and corrects it by what ran, and what a trial is expected to win over the rest of the
job, less what it costs (`worth`), ranks them. When nothing promises enough the search says so: the plan has converged,
and no random batch is ever tried on a running job.

`run_search` is pure and slow (some dozens of milliseconds): run it off the event loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from rex_operator.planning.advice import Advice, TeamQuestion, Terms, advise
from rex_operator.planning.candidates import Candidate, Range, enumerate_candidates
from rex_operator.planning.communication import Communication
from rex_operator.planning.curves import Array
from rex_operator.planning.memory import Limits
from rex_operator.planning.objective import log_objective
from rex_operator.planning.power import DevicePower, TeamPower
from rex_operator.planning.prediction import (
    chance_to_fit,
    computing,
    in_own_passes,
    predict,
    samples_per_pass,
    team_joules,
    untried,
)
from rex_operator.planning.split import Team, WorkerModel, own_passes
from rex_operator.planning.types import MAX_CANDIDATES, CandidateSummary
from rex_operator.planning.worth import Stakes, worth

if TYPE_CHECKING:
    from rex_operator.planning.surrogate import Belief

_BETWEEN = 0.12
"""Standard deviation of the log step time per doubling of the micro-batch between two measured ones ..."""
_BEYOND = 0.12
"""... and beyond all measured ones. Published curves miss their left-out points by about that much."""
_OTHERWISE = 0.15
"""Standard deviation that a measured step time gains per doubling of the samples per pass since."""
_FLOOR = 0.005
"""Standard deviation of a measured plan's log step time that no number of steps takes away."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A plan that ran with the present team."""

    global_batch: int
    accumulation: int
    seconds: float
    """Median seconds per step."""
    variance: float
    """Of the logarithm of ``seconds``, ageing included."""
    per_pass: float = 0.0
    """Samples of a pass of all workers when it ran; 0: not known."""


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """Everything that a search needs to know; plain data."""

    number: int
    """Grows with each request of a planner; answers to old ones are ignored."""
    models: tuple[WorkerModel, ...]
    memory: tuple[Limits, ...]
    """What is known of the largest micro-batch that fits, per worker."""
    overhead_s: float | Communication
    """Seconds per step beside the slowest worker's compute: communication, optimiser, data; or how they depend on the
    plan."""
    batch_min: int
    batch_max: int
    batch_initial: int
    current: tuple[int, int]
    """Global batch and accumulation of the plan that runs."""
    noise_scale: float | None
    """In samples; None: the objective is plain throughput."""
    measured: tuple[Measured, ...]
    low: int
    high: int
    """Batches allowed now; a direction that was rolled back lately is closed for a while."""
    other_passes: bool
    """Whether the current batch with another accumulation is allowed."""
    min_effect: float
    min_share: int = 1
    """Samples that each worker gets in each pass, at least."""
    trial_steps: int = 50
    """Steps that a trial takes, warm-up included."""
    remaining_samples: int | None = None
    """Samples that the job still has to train on; None: not known."""
    powers: tuple[DevicePower, ...] = ()
    """Each worker's device, where energy is what counts; empty: time is."""
    team: TeamQuestion | None = None
    """To be answered when no batch is worth a trial; None: nobody asks."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The candidate to try, or None with the reason; and the best ranked with their figures."""

    number: int
    choice: CandidateSummary | None
    candidates: tuple[CandidateSummary, ...]
    reason: str
    advice: Advice | None = None
    """Which workers do not pay for themselves, if that was asked."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """What is thought of the candidates that memory holds."""

    plans: list[Candidate]
    belief: Belief
    fit: Array
    """Chance that each fits in memory."""
    stakes: Stakes


def run_search(request: SearchRequest) -> SearchResult:
    """Rank the candidates; where none is worth a trial, look at the team if that was asked; pure."""
    result = _best_batch(request)
    if result.choice is not None or request.team is None:
        return result
    terms = Terms(
        request.overhead_s,
        max(request.batch_min, request.low),
        min(request.batch_max, request.high),
        request.batch_initial,
        request.min_share,
        request.noise_scale,
        request.min_effect,
    )
    return replace(result, advice=advise(request.models, request.team, terms))


def _best_batch(request: SearchRequest) -> SearchResult:
    plans = candidates(request)
    if not plans:
        return SearchResult(request.number, None, (), "Nothing to search: no other batch is allowed.")
    prospect = prospect_of(request, plans)
    if prospect is None:
        return SearchResult(request.number, None, (), "No other batch fits in the workers' memory.")
    margin = math.log1p(request.min_effect)
    value = worth(prospect.stakes, prospect.belief, prospect.fit, margin)
    order = np.argsort(-value, kind="stable")[:MAX_CANDIDATES].tolist()
    best = order[0]
    shown = _summaries(prospect, value, margin, order)
    if value[best] > 0:
        return SearchResult(request.number, shown[0], shown, f"Best of {len(prospect.plans)}: {_words(shown[0])}.")
    return SearchResult(request.number, None, shown, _farewell(request, prospect, shown[0]))


def candidates(request: SearchRequest) -> list[Candidate]:
    """Return all that may be tried now, without the current plan; ascending."""
    if request.batch_min == request.batch_max:
        return []
    size, passes = request.current
    least = request.min_share * len(request.models)
    allowed = Range(
        low=max(request.batch_min, request.low),
        high=min(request.batch_max, request.high),
        ran={size, *(m.global_batch for m in request.measured)},
        least=1 if own_passes(request.models) else least,
        room=Team(request.models).room(1),
    )
    found = enumerate_candidates(allowed, {size, request.batch_initial}, passes)
    if own_passes(request.models):  # how many a plan has is no question of its own then
        sizes = {c.global_batch for c in found} - {size}
        return [Candidate(*plan) for plan in in_own_passes(request.models, sizes, request.min_share)]
    return [c for c in found if c != request.current and (request.other_passes or c.global_batch != size)]


def prospect_of(request: SearchRequest, plans: Sequence[Candidate]) -> Prospect | None:
    """Return what is thought of ``plans``; None when memory holds none of them, or not even the running plan."""
    from rex_operator.planning import surrogate  # takes seconds to import; only a search needs it

    known = [(m.global_batch, m.accumulation) for m in request.measured]
    predicted = predict(request.models, request.overhead_s, [request.current, *known, *plans], request.min_share)
    own, past, ahead = predicted[0], predicted[1 : 1 + len(known)], predicted[1 + len(known) :]
    fits = np.isfinite(ahead)
    if not math.isfinite(own) or not fits.any():
        return None
    plans, ahead = [p for p, ok in zip(plans, fits, strict=True) if ok], ahead[fits]
    batch = np.array([b for b, _ in plans], dtype=np.float64)
    phi, initial = request.noise_scale, request.batch_initial
    prior = log_objective(batch, ahead, phi, initial) - log_objective(
        np.array([float(request.current[0])]), np.array([own]), phi, initial
    )
    if request.powers:
        draw = _draw(request, [request.current, *plans], np.concatenate([predicted[:1], ahead]))
        prior = prior - np.log(draw[1:] / draw[0])  # a step that proves slower than predicted draws longer, too
    usable = np.isfinite(past)
    belief = surrogate.believe(
        _places(request, [k for k, ok in zip(known, usable, strict=True) if ok]),
        np.log([m.seconds for m in request.measured])[usable] - np.log(past[usable]),
        _variances(request, known)[usable] + _FLOOR**2,
        _places(request, plans),
        _places(request, [request.current])[0],
        prior,
        _spread(request, plans, [request.current, *known]),
    )
    compute_s = computing(ahead, request.overhead_s, plans)
    fit = chance_to_fit(request.models, request.memory, plans, compute_s, request.min_share)
    stakes = Stakes.of(request.trial_steps, ahead, own, request.current[0], request.remaining_samples)
    return Prospect(list(plans), belief, fit, stakes)


def _draw(request: SearchRequest, plans: Sequence[tuple[int, int]], seconds: Array) -> Array:
    """Return the team's watts under each plan, on average over a step."""
    power = TeamPower(request.models, request.powers)
    spent = team_joules(request.models, power, request.overhead_s, plans, seconds, request.min_share)
    return spent / seconds


def _variances(request: SearchRequest, known: Sequence[tuple[int, int]]) -> Array:
    """Return how little the measured plans tell: the less, the more passes they ran in than they would now."""
    told = np.array([m.variance for m in request.measured])
    if not own_passes(request.models) or not known:
        return told
    now = samples_per_pass(request.models, known, request.min_share)
    then = np.array([m.per_pass for m in request.measured])
    apart = np.where(then > 0, np.log2(now / np.maximum(then, 1e-9)), 0.0)
    return np.asarray(told + (_OTHERWISE * apart) ** 2)


def _places(request: SearchRequest, plans: Sequence[tuple[int, int]]) -> Array:
    """Return where plans lie for the surrogate; passes count half: they run the same sizes, just more often.

    Not at all where workers take their own: a plan of the same batch is the same plan then, whatever it was named by.
    """
    weight = 0.0 if own_passes(request.models) else 0.5
    return np.log2(np.array(plans, dtype=np.float64).reshape(-1, 2)) * (1.0, weight)


def _spread(request: SearchRequest, plans: Sequence[tuple[int, int]], ran: Sequence[tuple[int, int]]) -> Array:
    if own_passes(request.models):
        between, beyond = untried(*(samples_per_pass(request.models, them, request.min_share) for them in (plans, ran)))
    else:
        between, beyond = untried(*(np.array([b / p for b, p in them]) for them in (plans, ran)))
    return _BETWEEN * between + _BEYOND * beyond


def _summaries(prospect: Prospect, value: Array, margin: float, order: list[int]) -> tuple[CandidateSummary, ...]:
    expected, chance = np.expm1(prospect.belief.expected()), prospect.belief.chance(margin) * prospect.fit
    return tuple(
        CandidateSummary(
            global_batch=prospect.plans[i].global_batch,
            accumulation=prospect.plans[i].accumulation,
            expected_gain=float(expected[i]),
            ei=float(max(value[i], 0.0)),
            chance=float(chance[i]),
            trial_s=float(prospect.stakes.trial_s[i]),
        )
        for i in order
    )


def _words(candidate: CandidateSummary) -> str:
    passes = f" in {candidate.accumulation} passes" if candidate.accumulation > 1 else ""
    return f"batch {candidate.global_batch}{passes}, expected {candidate.expected_gain:+.1%}"


def _farewell(request: SearchRequest, prospect: Prospect, best: CandidateSummary) -> str:
    """Say why nothing is tried."""
    margin, stakes = math.log1p(request.min_effect), prospect.stakes
    chance = prospect.belief.chance_of_any(margin, prospect.fit > 0)
    left = f"the chance that any batch is better by {request.min_effect:.1%} is {chance:.0%}; best left: {_words(best)}"
    if stakes.short and chance > 0.05:
        return f"{stakes.horizon_s:.0f} s of the job are left, too few for a trial of {best.trial_s:.0f} s ({left})."
    return f"Nothing is likely to be worth a trial: {left}."
