"""OptPerf: no other shares are faster, whatever regimes the nodes are in, and the paper's conditions hold."""

from __future__ import annotations

import numpy as np
import pytest

from rex_operator.planning import CannotPlan
from rex_operator.planning.optperf import Exchange, Node, OptPerf

INSTANCES, PERTURBATIONS = 300, 400


def draw(rng: np.random.Generator, caps: bool) -> tuple[list[Node], Exchange]:
    nodes = [
        Node(
            f"w{i}",
            q=float(rng.uniform(1e-4, 3e-3)),
            s=float(rng.uniform(0, 0.02)),
            k=float(rng.uniform(1e-4, 5e-3)),
            m=float(rng.uniform(0, 0.02)),
            cap=int(rng.integers(40, 200)) if caps and rng.random() < 0.4 else None,
        )
        for i in range(int(rng.integers(2, 9)))
    ]
    return nodes, Exchange(float(rng.uniform(0.05, 0.9)), float(rng.uniform(0, 0.3)), float(rng.uniform(0, 0.05)))


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("caps", [False, True])
def test_published_no_feasible_perturbation_is_faster(passes: int, caps: bool) -> None:
    rng = np.random.default_rng(passes)
    for _ in range(INSTANCES // 2):
        nodes, exchange = draw(rng, caps)
        optimum, count = OptPerf(nodes, exchange, passes), len(nodes)
        high = np.array([np.inf if n.cap is None else n.cap * passes for n in nodes])
        batch = int(min(rng.integers(passes * count, 400 * count), high.sum()))
        shares = np.array(list(optimum.shares(batch).values()))
        assert shares.sum() == batch and (shares <= high).all() and (shares >= passes).all()
        best = optimum.times(shares).max()
        assert optimum.seconds(np.array([float(batch)]))[0] <= best * (1 + 1e-9)
        rows = np.arange(PERTURBATIONS)
        moved = np.repeat(shares[None, :], PERTURBATIONS, axis=0)
        for _ in range(2):
            giver, taker = rng.integers(count, size=(2, PERTURBATIONS))
            room = np.minimum(moved[rows, giver] - passes, high[taker] - moved[rows, taker]).clip(min=0, max=64)
            amount = np.where(giver == taker, 0, (room * rng.random(PERTURBATIONS)).astype(int))
            moved[rows, giver] -= amount
            moved[rows, taker] += amount
        assert (moved.sum(axis=1) == batch).all()
        assert optimum.times(moved).max(axis=1).min() >= best * (1 - 1e-9)


def regimes(nodes: list[Node], exchange: Exchange, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    a = np.array([n.q for n in nodes]) * shares + [n.s for n in nodes]
    backward = np.array([n.k for n in nodes]) * shares + [n.m for n in nodes]
    return a, backward, (1 - exchange.gamma) * backward >= exchange.t_o


@pytest.mark.parametrize(("t_o", "expected"), [(0.0, "compute"), (5.0, "communication"), (0.12, "mixed")])
def test_published_conditions_of_the_regimes(t_o: float, expected: str) -> None:
    nodes = [
        Node("fast", 0.0004, 0.005, 0.0008, 0.004),
        Node("middle", 0.0010, 0.006, 0.0010, 0.005),
        Node("slow", 0.0010, 0.010, 0.0060, 0.010),
    ]
    exchange = Exchange(gamma=0.2, t_o=t_o, t_u=0.01)
    shares = OptPerf(nodes, exchange).exact(300)
    assert shares.sum() == pytest.approx(300)
    a, backward, compute = regimes(nodes, exchange, shares)
    match expected:
        case "compute":
            assert compute.all()
            assert np.allclose(a + backward, (a + backward)[0])
        case "communication":
            assert not compute.any()
            assert np.allclose(a + 0.2 * backward, (a + 0.2 * backward)[0])
        case _:
            assert compute.any() and not compute.all()
            done = np.where(compute, a + backward, a + 0.2 * backward + t_o)
            assert np.allclose(done, done[0])


def test_the_seconds_of_many_batches_are_those_of_their_exact_shares() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        nodes, exchange = draw(rng, caps=False)
        optimum, batches = OptPerf(nodes, exchange, 2), np.geomspace(20, 4000, 7)
        for batch, seconds in zip(batches, optimum.seconds(batches), strict=True):
            assert optimum.times(optimum.exact(batch, 2.0)).max() == pytest.approx(seconds, rel=1e-6)


def test_what_the_memory_does_not_hold_has_no_time_and_no_shares() -> None:
    nodes = [Node("w0", 0.001, 0.0, 0.002, 0.0, 10), Node("w1", 0.001, 0.0, 0.002, 0.0, 5)]
    optimum = OptPerf(nodes, Exchange())
    assert np.isnan(optimum.seconds(np.array([15.0, 16.0]))).tolist() == [False, True]
    assert optimum.shares(15) == {"w0": 10, "w1": 5}
    with pytest.raises(CannotPlan, match="does not fit"):
        optimum.shares(16)


def test_nodes_whose_time_does_not_depend_on_the_share() -> None:
    nodes = [Node("w0", 0.0, 0.1, 0.0, 0.0), Node("w1", 0.001, 0.0, 0.002, 0.0)]
    shares = OptPerf(nodes, Exchange()).shares(100)
    assert sum(shares.values()) == 100 and min(shares.values()) >= 1


@pytest.mark.parametrize("least", [2, 5])
def test_min_share_is_kept_in_each_pass(least: int) -> None:
    nodes = [Node("w0", 0.0001, 0.0, 0.0002, 0.0), Node("w1", 0.1, 1.0, 0.2, 0.0)]
    assert OptPerf(nodes, Exchange(), passes=3, min_share=least).shares(100)["w1"] == 3 * least
