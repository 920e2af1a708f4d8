"""The even policy is plain data-parallel training: equal shares, the user's batch, whatever is measured."""

from __future__ import annotations

import numpy as np

from rex_operator.planning import Planner, WorkerInfo
from tests.planning.simulated import MIX, Job, spec


def test_neither_shares_nor_batch_ever_move() -> None:
    planner = Planner(spec(66, policy="even"), np.random.default_rng(0))
    job = Job.of(planner, MIX)
    job.run(60)
    job.slow["w0"] = 3.0
    job.run(60)
    assert job.kinds() == ["membership"]
    assert job.plan is not None
    assert sorted(job.plan.local_batches.values()) == [16, 16, 17, 17]


def test_it_shares_among_those_who_are_there() -> None:
    planner = Planner(spec(60, policy="even"), np.random.default_rng(0))
    draft = planner.set_workers([WorkerInfo(f"w{i}", "life", "any", 20 if i else None) for i in range(3)], 0.0)
    assert dict(draft.local_batches) == {"w0": 20, "w1": 20, "w2": 20}
    draft = planner.set_workers([WorkerInfo(f"w{i}", "life", "any", 12 if i else None) for i in range(3)], 1.0)
    assert dict(draft.local_batches) == {"w0": 36, "w1": 12, "w2": 12}


def test_it_still_shows_what_goes_on() -> None:
    planner = Planner(spec(64, policy="even"), np.random.default_rng(0))
    job = Job.of(planner, MIX)
    job.run(30)
    view = planner.view()
    assert view.throughput is not None and view.noise_scale is not None and view.loss is not None
    assert set(view.workers) == set(job.devices)
    assert all(w.compute_s is not None and w.wait_s is not None and not w.stale for w in view.workers.values())
    slowest = max(view.workers, key=lambda w: view.workers[w].compute_s or 0.0)
    assert slowest == "w3"
