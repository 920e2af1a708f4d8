"""Which batch is worth a trial next, if any?

Batches are few (some dozens of geometrically spaced sizes times a few accumulation counts) and trials are dear, so all
candidates are enumerated and scored instead of sampled: the curves predict each one's step time at its best split, the
surrogate says how sure that is and corrects it by what ran, and the expected improvement beyond the practical margin,
times the chance that it fits in memory, less what the trial itself is expected to cost, ranks them. When nothing
promises enough the search says so: the plan has converged, and no random batch is ever tried on a running job.

`run_search` is pure and slow (some hundred milliseconds): run it off the event loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rex_operator.planning.curves import Array
from rex_operator.planning.split import Team, WorkerModel
from rex_operator.planning.types import MAX_CANDIDATES, CandidateSummary

STEPS_PER_DOUBLING = 4
"""Candidate batches are a factor 2^(1/4) apart: nearer ones differ by less than a trial can show."""
REACH = 2.0
"""Never further than this factor beyond what has run (C-167)."""
_TIMES = 96
_MOST_PASSES = 64
_WORTH = 0.05
"""A trial is worth it when the expected improvement is at least this share of the practical margin ..."""
_LEAST_WORTH = 5e-4
"""... and at least this, so that without a margin there is an end too."""
_HORIZON = 40.0
"""A trial is a loss while it runs, if it is one; what it finds pays for the length of about so many trials."""
_UNKNOWN_MEMORY = 0.2
"""Hazard of running out of memory per doubling of the micro-batch beyond the largest that ran."""
_UNCERTAIN = 0.04
"""Standard deviation of the log step time that each doubling beyond the measured batches adds."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A plan that ran with the present team."""

    global_batch: int
    accumulation: int
    seconds: float
    """Median seconds per step."""
    variance: float
    """Of the logarithm of ``seconds``, ageing included."""


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """Everything that a search needs to know; plain data."""

    number: int
    """Grows with each request of a planner; answers to old ones are ignored."""
    models: tuple[WorkerModel, ...]
    proven: tuple[float, ...]
    """Largest micro-batch that is known to fit, per worker."""
    overhead_s: float
    """Seconds per step beside the slowest worker's compute: communication, optimiser, data."""
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


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The candidate to try, or None with the reason; and the best ranked with their figures."""

    number: int
    choice: CandidateSummary | None
    candidates: tuple[CandidateSummary, ...]
    reason: str


def run_search(request: SearchRequest) -> SearchResult:
    """Rank the candidates; pure."""
    plans = candidates(request)
    if not plans:
        return SearchResult(request.number, None, (), "Nothing to search: no other batch is allowed.")
    ranked = _rank(request, plans)
    if not ranked:
        return SearchResult(request.number, None, (), "No other batch fits in the workers' memory.")
    best = ranked[0]
    worth = max(_WORTH * request.min_effect, _LEAST_WORTH)
    if best.ei < worth:
        reason = f"Nothing promises to be better by {request.min_effect:.1%}; best left: {_words(best)}."
        return SearchResult(request.number, None, tuple(ranked[:MAX_CANDIDATES]), reason)
    return SearchResult(request.number, best, tuple(ranked[:MAX_CANDIDATES]), f"Best of {len(ranked)}: {_words(best)}.")


def _words(candidate: CandidateSummary) -> str:
    passes = f" in {candidate.accumulation} passes" if candidate.accumulation > 1 else ""
    return f"batch {candidate.global_batch}{passes}, expected {candidate.expected_gain:+.1%}"


def candidates(request: SearchRequest) -> list[tuple[int, int]]:
    """Return all (global batch, accumulation) that may be tried now, without the current one; ascending."""
    if request.batch_min == request.batch_max:
        return []
    tried = [m.global_batch for m in request.measured] + [request.current[0]]
    least = request.min_share * len(request.models)
    low = max(request.batch_min, request.low, math.ceil(min(tried) / REACH), least)
    high = min(request.batch_max, request.high, math.floor(max(tried) * REACH))
    sizes = {request.current[0], request.batch_initial, low, high}
    if high > low:
        count = round(math.log2(high / low) * STEPS_PER_DOUBLING) + 1
        sizes |= set(np.rint(np.geomspace(low, high, max(2, count))).astype(int).tolist())
    plans = []
    for size in sorted(s for s in sizes if low <= s <= high):
        passes = 1
        while passes <= _MOST_PASSES and size >= passes * least:
            plans.append((size, passes))
            passes *= 2
    own = request.current
    if own[1] not in {p for _, p in plans}:
        plans += [(size, own[1]) for size in {s for s, _ in plans} if size >= own[1] * least]
    return [p for p in sorted(set(plans)) if p != own and (request.other_passes or p[0] != own[0])]


def predict(
    models: Sequence[WorkerModel], overhead_s: float, plans: Sequence[tuple[int, int]], min_share: int = 1
) -> Array:
    """Return the predicted seconds per step of each plan at its best split; NaN where `split` knows none."""
    team = Team(models)
    out = np.full(len(plans), np.nan)
    for passes in {p for _, p in plans}:
        rows = [i for i, (_, p) in enumerate(plans) if p == passes]
        batches = np.array([plans[i][0] for i in rows], dtype=np.float64)
        least = min_share * passes
        if min_share == 1 and batches.min() < passes * len(team):
            least = 1  # as `split` has it: some passes of some workers are empty
        smallest = team.times(np.full(len(team), least), passes)
        low = float(smallest.min()) / 2
        high = 2 * low
        top = min(float(batches.max()), team.room(passes))
        while team.fit_within(high, passes, least).sum() < top * (1 - 1e-9):
            high *= 2
        times = np.geomspace(low, high, _TIMES)
        done = np.array([team.fit_within(t, passes, least).sum() for t in times])
        done = np.maximum.accumulate(done) + 1e-9 * np.arange(_TIMES)
        seconds = np.exp(np.interp(np.log(batches), np.log(done), np.log(times)))
        seconds = np.maximum(seconds, smallest.max()) + overhead_s  # nobody can take less than ``least``
        possible = (batches <= team.room(passes)) & ((min_share == 1) | (batches >= least * len(team)))
        out[rows] = np.where(possible, seconds, np.nan)
    return out


def log_objective(batch: Array, seconds: Array, noise_scale: float | None, initial: int) -> Array:
    """Return the logarithm of goodput (or of throughput, when no noise scale is given)."""
    wasted = 0.0 if noise_scale is None else np.log((noise_scale + batch) / (noise_scale + initial))
    return np.asarray(np.log(batch) - wasted - np.log(seconds))


def _rank(request: SearchRequest, plans: list[tuple[int, int]]) -> list[CandidateSummary]:
    from rex_operator.planning import surrogate  # takes seconds to import; only a search needs it

    known = [(m.global_batch, m.accumulation) for m in request.measured]
    predicted = predict(request.models, request.overhead_s, [request.current, *known, *plans], request.min_share)
    own, past, ahead = predicted[0], predicted[1 : 1 + len(known)], predicted[1 + len(known) :]
    fits = np.isfinite(ahead)
    if not math.isfinite(own) or not fits.any():
        return []
    plans, ahead = [p for p, ok in zip(plans, fits, strict=True) if ok], ahead[fits]
    batch = np.array([b for b, _ in plans], dtype=np.float64)
    phi, initial = request.noise_scale, request.batch_initial
    prior = log_objective(batch, ahead, phi, initial) - log_objective(
        np.array([float(request.current[0])]), np.array([own]), phi, initial
    )
    usable = np.isfinite(past)
    residuals = np.log([m.seconds for m in request.measured])[usable] - np.log(past[usable])
    variances = np.array([m.variance for m in request.measured])[usable] + 0.005**2
    weights, mean, deviation = surrogate.gains(
        _places([k for k, ok in zip(known, usable, strict=True) if ok]),
        residuals,
        variances,
        _places(plans),
        _places([request.current])[0],
        prior,
        _extrapolation(batch, [b for b, _ in known] + [request.current[0]]),
    )
    ei = surrogate.mixture(weights, surrogate.expected_improvement(mean, deviation, math.log1p(request.min_effect)))
    expected = surrogate.mixture(weights, mean)
    ei = ei * _chance_to_fit(request, plans, ahead) - np.maximum(0.0, -expected) / _HORIZON
    gain = np.expm1(expected)
    order = np.argsort(-ei, kind="stable")
    return [
        CandidateSummary(
            global_batch=plans[i][0], accumulation=plans[i][1], expected_gain=float(gain[i]), ei=float(max(ei[i], 0.0))
        )
        for i in order
    ]


def _places(plans: Sequence[tuple[int, int]]) -> Array:
    """Return where plans lie for the surrogate; passes count half: they run the same sizes, just more often."""
    return np.log2(np.array(plans, dtype=np.float64).reshape(-1, 2)) * (1.0, 0.5)


def _extrapolation(batch: Array, ran: Sequence[int]) -> Array:
    beyond = np.maximum(np.log2(batch / max(ran)), np.log2(min(ran) / batch))
    return _UNCERTAIN * np.maximum(0.0, beyond)


def _chance_to_fit(request: SearchRequest, plans: Sequence[tuple[int, int]], seconds: Array) -> Array:
    """Return the chance that no worker runs out of memory, from how far beyond the proven size each would go."""
    team, proven = Team(request.models), np.array(request.proven)
    out = np.empty(len(plans))
    for i, (_, passes) in enumerate(plans):
        shares = team.fit_within(max(seconds[i] - request.overhead_s, 1e-12), passes, request.min_share * passes)
        furthest = float((np.ceil(shares / passes) / proven).max())
        out[i] = math.exp(-_UNKNOWN_MEMORY * math.log2(max(1.0, furthest)))
    return out
