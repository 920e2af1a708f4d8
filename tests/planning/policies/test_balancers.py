"""What all published balancers promise: exact sums within bounds, no surprise from odd input, even times in the end."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rex_operator.planning.policies import POLICIES
from tests.planning.policies.balancing import Bench, line, step

BALANCERS = ("lbb", "lb-bsp", "boa", "dlb", "omnilearn", "saddle")
MIX = {"w0": line(0.06, 0.002), "w1": line(0.06, 0.002), "w2": line(0.10, 0.0045), "w3": line(0.18, 0.011)}


def bench(name: str, batch: int = 512, **more: object) -> Bench:
    return Bench(POLICIES[name](), MIX, batch, steps_per_epoch=12, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", BALANCERS)
def test_unlike_workers_come_to_finish_together(name: str) -> None:
    run = bench(name)
    assert run.effect > 1.2
    run.rounds(25)
    assert run.effect <= {"omnilearn": 0.35, "saddle": 0.25}.get(name, 0.08)


@pytest.mark.parametrize("name", BALANCERS)
@pytest.mark.parametrize("kind", ["any", "cpu"])
def test_a_worker_that_became_slow_is_relieved(name: str, kind: str) -> None:
    run = bench(name, kind=kind)
    run.rounds(12)
    before = run.shares
    run.devices["w0"] = line(0.12, 0.004)
    run.rounds(12)
    assert run.shares["w0"] < 0.8 * before["w0"]
    assert run.shares["w1"] > before["w1"]


@pytest.mark.parametrize("name", BALANCERS)
def test_ceilings_bind(name: str) -> None:
    run = bench(name, caps={"w0": 150, "w1": 140})
    for shares in run.rounds(8):
        assert shares["w0"] <= 150
        assert shares["w1"] <= 140


@pytest.mark.parametrize("name", BALANCERS)
def test_equal_workers_stay_equal(name: str) -> None:
    run = Bench(POLICIES[name](), {f"w{i}": line(0.05, 0.002) for i in range(4)}, 256, steps_per_epoch=12)
    assert all(shares == dict.fromkeys(run.devices, 64) for shares in run.rounds(5))


@pytest.mark.parametrize("name", BALANCERS)
@pytest.mark.parametrize("bad", [float("nan"), 0.0, float("inf")])
def test_times_that_say_nothing_move_nothing(name: str, bad: float) -> None:
    run = bench(name)
    run.rounds(1)
    before = run.shares
    for epoch in range(5):
        run.steps = [step(100 + i, [bad, 0.1, 0.2, 0.3], epoch) for i in range(12)]
        scene = dataclasses.replace(run.scene(), epoch=epoch + 1)
        assert run.policy.rebalance(scene) is None
    assert run.shares == before


@pytest.mark.parametrize("name", BALANCERS)
def test_one_worker_alone_keeps_it_all(name: str) -> None:
    run = Bench(POLICIES[name](), {"w0": line(0.05, 0.002)}, 64, steps_per_epoch=12)
    assert all(shares == {"w0": 64} for shares in run.rounds(4))


@pytest.mark.parametrize("name", BALANCERS)
def test_the_same_steps_lead_to_the_same_shares(name: str) -> None:
    first, second = (bench(name, noise=0.05).rounds(8) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", BALANCERS)
def test_who_stays_keeps_its_weight_and_a_newcomer_gets_its_peers_mean(name: str) -> None:
    run = bench(name)
    run.rounds(12)
    learned = run.shares
    run.policy.restarted()
    newcomer = dataclasses.replace(run.workers[0], worker_id="w4")
    scene = dataclasses.replace(run.scene(), workers=(*run.workers, newcomer), running=None)
    shares = run.policy.shares(scene, 640, 1)
    assert sum(shares.values()) == 640
    order = sorted(learned, key=lambda w: (learned[w], w))
    assert [w for w in sorted(shares, key=lambda w: (shares[w], w)) if w != "w4"] == order
    assert shares["w4"] == pytest.approx(np.mean([shares[w] for w in learned]), abs=1.5)


@pytest.mark.parametrize("name", ["dlb", "omnilearn"])
def test_without_an_epochs_end_nothing_moves(name: str) -> None:
    run = Bench(POLICIES[name](), MIX, 512, steps_per_epoch=10**9)
    assert all(shares == dict.fromkeys(MIX, 128) for shares in run.rounds(5))
