"""The DYNAMIX-style policy: a frozen network turns shares up and down by what it sees; the batch is their sum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.dynamix_training import Clusters, Network, learn, rollout
from rex_operator.planning import Planner
from rex_operator.planning.policies.dynamix import FACTORS, FEATURES, elasticities, features, logits
from rex_operator.planning.policies.dynamix_network import HIDDEN, OUT
from tests.planning.simulated import MIX, V100, Job, spec


def job(team: tuple[Any, ...] = MIX, seed: int = 0, high: int = 2048, **more: Any) -> Job:
    planner = Planner(spec(64, 32, high, policy="dynamix"), np.random.default_rng(seed))
    return Job.of(planner, team, seed=seed, **{"noise": 0.02, "noise_scale": lambda progress: 600.0, **more})


def seen(times: list[float], shares: list[float], phi: float = 600.0) -> np.ndarray:
    arrays = (np.array(times), np.array(shares))
    step_s = np.array(max(times) + 0.01)
    return features(*arrays, step_s, np.array(phi), np.array(2048.0), np.full(len(times), 0.8), np.array(0.0))


# --- what it sees -----------------------------------------------------------------------------------------------------


def test_what_it_sees_is_bounded_whatever_is_measured() -> None:
    for times, shares, phi in (([1e-9, 1e7], [1.0, 1e6], 1e-3), ([1.0, 1.0], [1.0, 1.0], 1e9)):
        found = seen(times, shares, phi)
        assert found.shape == (2, FEATURES)
        assert np.isfinite(found).all() and (np.abs(found) <= 2).all()


def test_an_elasticity_is_learned_from_two_sizes_only() -> None:
    known = np.array([0.8, 0.8])
    before, now = (np.array([10.0, 10.0]), np.array([1.0, 1.0])), (np.array([20.0, 10.1]), np.array([1.5, 3.0]))
    found = elasticities(known, before, now)
    assert found[0] == pytest.approx((0.8 + np.log2(1.5)) / 2)
    assert found[1] == 0.8


# --- what it does -----------------------------------------------------------------------------------------------------


def factors(*args: Any) -> np.ndarray:
    return np.asarray(FACTORS[logits(seen(*args), HIDDEN, OUT).argmax(axis=-1)])


def test_the_slowest_gets_less_and_the_fastest_more() -> None:
    turned = factors([0.02, 0.02, 0.02, 0.08], [32.0] * 4, 300.0)
    assert turned[3] < turned[0]


def test_batches_grow_more_where_the_noise_scale_is_large() -> None:
    assert factors([0.05] * 4, [32.0] * 4, 1e5).mean() > factors([0.05] * 4, [32.0] * 4, 5.0).mean()


@pytest.mark.parametrize("seed", range(3))
def test_a_job_gets_better_by_shares_and_batch(seed: int) -> None:
    it = job(seed=seed, overhead_s=0.012)
    it.run(150)
    assert {"adopted"} <= set(it.kinds())
    assert it.plan is not None
    assert it.goodput(it.plan) >= 1.5 * it.goodput(it.drafts[0])
    assert it.plan.local_batches["w0"] > it.plan.local_batches["w3"]


def test_the_same_measurements_lead_to_the_same_plans() -> None:
    first, second = job(), job()
    first.run(60)
    second.run(60)
    assert [d.local_batches for d in first.drafts] == [d.local_batches for d in second.drafts]


def test_bounds_and_memory_are_kept() -> None:
    it = job(high=200, memory={"t4": 24}, noise_scale=lambda progress: 1e5)
    it.run(90)
    assert all(32 <= draft.global_batch <= 200 for draft in it.drafts)
    assert it.plan is not None
    assert it.plan.local_batches["w3"] <= 24 * it.plan.accumulation


def test_without_a_noise_scale_nothing_moves() -> None:
    it = job()
    policy = it.planner._policy
    for _ in range(60):
        it.one_step()
    whole = it.planner._scene(100.0)
    assert len(whole.steps) >= 20
    assert policy.rebalance(replace(whole, noise=None)) is None
    assert policy.adopt(replace(whole, noise=None)) is None


def test_a_newcomer_starts_with_its_kinds_share() -> None:
    it = job()
    it.run(100)
    it.join({"new": V100})
    assert it.plan is not None
    assert it.plan.local_batches["new"] == pytest.approx(it.plan.local_batches["w2"], abs=1)


# --- how it was trained -----------------------------------------------------------------------------------------------


def test_training_raises_the_goodput_of_unseen_clusters() -> None:
    def reached(network: Network) -> float:
        clusters = Clusters(np.random.default_rng(99), 4, jobs=64)
        for _ in range(20):
            clusters.act(network.forward(clusters.observe())[1].argmax(axis=-1))
        return float(np.median(clusters.goodput() / clusters.best()))

    rng = np.random.default_rng(0)
    network = Network(rng)
    before = reached(network)
    for _ in range(25):
        learn(network, rollout(network, Clusters(rng, 4, jobs=32), rng), rng, 3e-3)
    assert reached(network) >= before + 0.05


def test_the_numbers_that_ship_reach_what_the_training_said() -> None:
    shares = []
    for workers in (2, 4, 8):
        clusters = Clusters(np.random.default_rng(workers), workers)
        for _ in range(30):
            clusters.act(logits(clusters.observe(), HIDDEN, OUT).argmax(axis=-1))
        shares += (clusters.goodput() / clusters.best()).tolist()
    assert float(np.median(shares)) >= 0.85
