"""The planner at a glance."""

from __future__ import annotations

import itertools

import numpy as np

from rex_operator.planning.knowledge import Knowledge
from rex_operator.planning.types import DecisionRecord, PlanDraft, PlannerView, TrialView, WorkerView

_LATEST = 50
_SHORTEST_S = 1e-9
"""Less is no time that a step can take, and rates made from it need not be finite."""


def look_at(
    known: Knowledge,
    plan: PlanDraft | None,
    trial: TrialView | None,
    trials: int,
    last: DecisionRecord | None,
    converged: bool,
    now: float,
) -> PlannerView:
    """Return the view of a planner whose present plan is ``plan``."""
    window, latest = known.ingest.window, known.latest
    shares = dict(plan.local_batches) if plan else {}
    stale = known.ingest.stale(now)
    workers = {w: WorkerView(share, stale=w in stale) for w, share in shares.items()}
    throughput = goodput = step_s = None
    steps = list(window.ripe()[-_LATEST:]) if window else []
    if window is not None and not steps:  # still warming up: better a rough figure than none
        steps = list(itertools.islice(window.newest(), _LATEST))
    if window is not None and steps:
        compute = np.median([s.compute_s for s in steps], axis=0)
        wait = np.median([s.wait_s for s in steps], axis=0)
        for i, worker in enumerate(window.workers):
            if worker in workers:
                told = [float(s.comm_s[i]) for s in steps if np.isfinite(s.comm_s[i])]
                comm = float(np.median(told)) if told else None
                workers[worker] = WorkerView(shares[worker], float(compute[i]), float(wait[i]), worker in stale, comm)
        median = float(np.median([s.step_s for s in steps]))
        step_s = median if median >= _SHORTEST_S else None
        if plan is not None and step_s is not None:
            throughput = plan.global_batch / step_s
            goodput = known.useful(plan) / step_s
    return PlannerView(
        throughput=throughput,
        goodput=goodput,
        noise_scale=known.noise_scale(),
        step_s=step_s,
        step=latest.step if latest else 0,
        samples=latest.samples if latest else 0,
        loss=latest.loss if latest else None,
        workers=workers,
        trial=trial,
        trials=trials,
        converged=converged,
        diverged=window.diverged if window else False,
        last_decision=last,
        set_aside=dict(known.ingest.set_aside),
    )
