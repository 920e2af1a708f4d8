"""LB-BSP: a predictor for CPUs that beats the last value, and moves along lines with floors for GPUs."""

from __future__ import annotations

import numpy as np
import pytest

from rex_operator.planning.policies.lb_bsp import LbBsp, predicted_speed
from tests.planning.policies.balancing import Bench, line


def test_the_prediction_beats_the_last_speed_and_the_mean_where_speed_wanders() -> None:
    rng = np.random.default_rng(0)
    squares = {"predicted": 0.0, "last": 0.0, "mean": 0.0}
    state, series = 0.0, []
    for _ in range(600):
        state = 0.7 * state + rng.normal()
        series.append(100 * np.exp(0.05 * state))
    for end in range(60, 599):
        past = np.array(series[:end])
        for name, value in (("predicted", predicted_speed(past)), ("last", past[-1]), ("mean", past[-60:].mean())):
            squares[name] += (value - series[end]) ** 2
    assert squares["predicted"] < min(squares["last"], squares["mean"])


@pytest.mark.parametrize("speeds", [[5.0], [5.0] * 40, [1.0, 1e6] * 20])
def test_a_prediction_stays_within_what_was_seen(speeds: list[float]) -> None:
    assert min(speeds) <= predicted_speed(np.array(speeds)) <= max(speeds)


def test_on_cpus_shares_are_proportional_to_speed() -> None:
    run = Bench(LbBsp(), {"w0": line(0, 0.001), "w1": line(0, 0.003)}, 80, kind="cpu")
    run.run()
    assert run.shares == {"w0": 60, "w1": 20}


def test_on_gpus_a_floor_is_seen_and_not_cut_into() -> None:
    """A device that takes 0.2 s however little it gets: below that, less work does not help it."""
    floor = {"w0": line(0.0, 0.002), "w1": lambda samples: max(0.2, 0.002 * samples)}
    run = Bench(LbBsp(), floor, 120)
    run.rounds(6)
    assert run.times().max() == pytest.approx(0.2)


def test_nothing_moves_while_the_gap_is_small() -> None:
    run = Bench(LbBsp(), {"w0": line(0, 0.00100), "w1": line(0, 0.00104)}, 80)
    assert run.run() is None
