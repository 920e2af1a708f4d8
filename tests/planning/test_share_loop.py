"""The fast inner loop believes a jump after three steps, follows a drift, and hears nothing in noise."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from rex_operator.planning.share_loop import BRIEF, DRIFT_STEPS, LASTING, RUN, ShareLoop
from rex_operator.planning.statistics import of_others
from rex_operator.planning.windows import GroupStep
from tests.planning.policies.balancing import step

NAMES = ("w0", "w1", "w2", "w3")
LEAST = np.full(4, math.log(1.15))
EXPECTED = np.array([0.1, 0.1, 0.2, 0.4])


def noise(count: int, sd: float, rho: float = 0.0, seed: int = 0) -> npt.NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, 4))
    for i in range(1, count):
        rows[i] = rho * rows[i - 1] + math.sqrt(1 - rho * rho) * rows[i]
    return sd * rows


def loop(sd: float = 0.02, rho: float = 0.0) -> ShareLoop:
    taught = ShareLoop()
    taught.learn(NAMES, np.log(EXPECTED) + noise(100, sd, rho, seed=1))
    return taught


def steps(logs: npt.NDArray[np.float64], slow: dict[int, float], since: int, first: int = 100) -> list[GroupStep]:
    """Steps whose workers are slower by a factor from index ``since`` on."""
    times = EXPECTED * np.exp(logs)
    for worker, factor in slow.items():
        times[since:, worker] *= factor
    return [step(first + i, row) for i, row in enumerate(times)]


@pytest.mark.parametrize("factor", [2.0, 1.4, 0.6])
@pytest.mark.parametrize("worker", range(4))
def test_a_jump_is_named_after_three_steps(factor: float, worker: int) -> None:
    run = steps(noise(20, 0.02), {worker: factor}, since=10)
    taught = loop()
    assert all(taught.look(run[:end], NAMES, EXPECTED, LEAST) is None for end in range(10 + RUN))
    found = taught.look(run[: 10 + RUN], NAMES, EXPECTED, LEAST)
    assert found is not None
    assert (found.change.worker, found.change.step, found.workers) == (worker, 110, (worker,))
    assert found.change.ratio == pytest.approx(factor, rel=0.1)
    assert found.change.p < 1e-3


def test_of_two_workers_the_one_that_left_its_past_is_meant() -> None:
    for slow in (0, 1):
        taught = ShareLoop()
        names, expected = ("a", "b"), np.array([0.1, 0.2])
        rng = np.random.default_rng(3)
        taught.learn(names, np.log(expected) + 0.01 * rng.normal(size=(100, 2)))
        times = np.tile(expected, (5, 1))
        times[:, slow] *= 2
        found = taught.look([step(i, row) for i, row in enumerate(times)], names, expected, LEAST[:2])
        assert found is not None
        assert found.change.worker == slow
        assert found.change.ratio > 1


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.6, 0.8])
@pytest.mark.parametrize("sd", [0.01, 0.05, 0.2])
def test_noise_is_neither_a_jump_nor_a_drift(sd: float, rho: float) -> None:
    taught, run = loop(sd, rho), steps(noise(1000, sd, rho, seed=2), {}, 0)
    tau = (1 + rho) / (1 - rho)
    for end in range(DRIFT_STEPS, len(run)):
        assert taught.look(run[end - DRIFT_STEPS : end], NAMES, EXPECTED, LEAST) is None
        assert not taught.drifting(run[end - DRIFT_STEPS : end], NAMES, EXPECTED, tau)


def test_all_at_once_is_nobodys_jump() -> None:
    run = steps(noise(20, 0.02), dict.fromkeys(range(4), 2.0), since=10)
    assert all(loop().look(run[:end], NAMES, EXPECTED, LEAST) is None for end in range(20))


def test_who_moves_along_is_known_anew_as_well() -> None:
    run = steps(noise(13, 0.02), {0: 1.3, 1: 1.3, 2: 1.3, 3: 3.0}, since=10)
    found = loop().look(run, NAMES, EXPECTED, LEAST)
    assert found is not None
    assert (found.change.worker, found.workers) == (3, (0, 1, 2, 3))


@pytest.mark.parametrize("length", [1, 2])
def test_one_or_two_odd_steps_are_no_jump(length: int) -> None:
    run = steps(noise(10, 0.02), {2: 3.0}, since=10 - length)
    assert loop().look(run, NAMES, EXPECTED, LEAST) is None


def test_bursts_make_it_wait_for_longer_and_lasting_jumps_for_less() -> None:
    taught = loop()

    def seen(slower: bool, first: int, length: int) -> bool:
        run = steps(noise(length, 0.01), {0: 2.0 if slower else 0.5}, since=0, first=first)
        return taught.look(run, NAMES, EXPECTED, LEAST) is not None

    assert seen(True, 100, RUN)
    assert seen(False, 100 + BRIEF, RUN), "it was over again at once"
    assert not seen(True, 140, RUN), "a burst like the last one"
    assert seen(True, 140, 2 * RUN), "this one goes on"
    assert seen(False, 140 + LASTING, 2 * RUN)
    assert seen(True, 140 + 2 * LASTING, RUN)


def test_before_enough_was_seen_nothing_is_said() -> None:
    taught = ShareLoop()
    run = steps(noise(10, 0.02), {0: 3.0}, since=0)
    assert taught.look(run, NAMES, EXPECTED, LEAST) is None
    taught.learn(NAMES, np.log(EXPECTED) + noise(10, 0.02))
    assert taught.look(run, NAMES, EXPECTED, LEAST) is None, "ten steps do not tell a spread"
    assert taught.look(run, ("w0", "w1", "w2", "w9"), EXPECTED, LEAST) is None


def test_a_drift_is_seen_in_ten_steps_and_a_burst_is_none() -> None:
    taught = loop(sd=0.01)
    slope = np.zeros((DRIFT_STEPS, 4))
    slope[:, 1] = np.linspace(0.03, 0.10, DRIFT_STEPS)
    assert taught.drifting(steps(noise(DRIFT_STEPS, 0.01) + slope, {}, 0), NAMES, EXPECTED, 1.0)
    burst = np.zeros((DRIFT_STEPS, 4))
    burst[-4:, 1] = 0.7
    assert not taught.drifting(steps(noise(DRIFT_STEPS, 0.01) + burst, {}, 0), NAMES, EXPECTED, 1.0)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 9])
def test_the_others_median_leaves_oneself_out(count: int) -> None:
    rows = np.random.default_rng(count).normal(size=(6, count))
    rows[0] = 1.0
    naive = [[np.median(np.delete(row, i)) for i in range(count)] for row in rows]
    assert np.allclose(of_others(rows), naive)
