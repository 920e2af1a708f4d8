"""The ablation's arm always-accept keeps what the search proposes; only the planner's own vetoes stop it."""

from __future__ import annotations

import math

import numpy as np

from rex_operator.planning import Planner
from tests.planning.simulated import DEMO, MIX, Job, spec


def test_every_trial_is_kept_without_a_test() -> None:
    planner = Planner(spec(64, 32, 4096, policy="always-accept"), np.random.default_rng(0))
    job = Job.of(planner, DEMO, noise_scale=lambda samples: 400.0, noise=0.03, overhead_s=0.012)
    job.run(60)
    kinds = job.kinds()
    assert kinds.count("accepted") >= 1
    assert not {"rejected", "inconclusive"} & set(kinds)
    for decision in planner.decisions:
        if decision.kind == "accepted":
            assert decision.evidence is None and "without a test" in decision.reason


def test_a_diverging_loss_still_vetoes() -> None:
    planner = Planner(spec(64, 64, 1024, policy="always-accept"), np.random.default_rng(0))
    job = Job.of(planner, MIX, loss=lambda samples, batch: math.nan if batch > 64 else 1.0)
    job.run(60)
    assert "vetoed" in job.kinds()
