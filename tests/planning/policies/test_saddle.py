"""SADDLE's parts as far as they are public, and the bound that keeps a z-score across workers from ever firing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rex_operator.planning.noise import NoiseScale
from rex_operator.planning.policies.saddle import CLEAR, LIMIT, Detector, Pid, Saddle
from tests.planning.policies.balancing import Bench, line

TWINS = {f"w{i}": line(0.05, 0.002) for i in range(4)}


@given(st.lists(st.floats(0.01, 1e3), min_size=2, max_size=12))
def test_z_across_workers_is_bounded_by_their_number(times: list[float]) -> None:
    """Samuelson's inequality: with four workers no z passes 1.5, so "z > 2" across workers never fires below six."""
    sample, count = np.array(times), len(times)
    deviation = sample.std(ddof=1)
    if deviation > 1e-9 * sample.mean():
        assert (np.abs(sample - sample.mean()) / deviation).max() <= (count - 1) / math.sqrt(count) * (1 + 1e-6)


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_z_over_time_is_not_bounded_so(workers: int) -> None:
    usual = np.full(workers, 0.1)
    detector = Detector(usual, usual)
    for i in range(10):
        detector.take(usual * (1 + 0.01 * (-1) ** i))
    assert not detector.fired
    slow = usual.copy()
    slow[0] *= 2
    z = np.zeros(workers)
    for _ in range(3):
        z = detector.take(slow)
    assert z[0] > CLEAR > (workers - 1) / math.sqrt(workers)
    assert detector.fired


def test_the_controllers_output_and_memory_are_bounded() -> None:
    pid = Pid(2)
    for _ in range(100):
        out = pid.act(np.array([10.0, 0.1]))
    assert out == pytest.approx([LIMIT, -LIMIT])
    assert np.abs(pid.integral).max() <= LIMIT


def test_even_workers_are_no_event_and_a_straggler_is_one() -> None:
    run = Bench(Saddle(), TWINS, 256, noise=0.01)
    assert all(run.run(10) is None for _ in range(20))
    run.devices["w1"] = line(0.10, 0.004)
    found = [run.run(10) for _ in range(4)]
    assert any(found)
    assert next(f for f in found if f).slowest == "w1"


@pytest.mark.parametrize(("phi", "expected"), [(300.0, None), (500.0, 512)])
def test_the_batch_doubles_when_the_noise_scale_passes_one_and_a_half(phi: float, expected: int | None) -> None:
    run = Bench(Saddle(), TWINS, 256)
    run.noise_scale = NoiseScale(value=phi, low=phi, high=phi)
    found = run.policy.adopt(run.scene())
    assert (found.global_batch if found else None) == expected


def test_memory_and_bounds_cap_the_batch() -> None:
    for caps, high, most in ((dict.fromkeys(TWINS, 90), 4096, 360), (None, 300, 300)):
        run = Bench(Saddle(), TWINS, 256, caps=caps, high=high)
        run.noise_scale = NoiseScale(value=1e6, low=1e6, high=1e6)
        found = run.policy.adopt(run.scene())
        assert found is not None
        assert found.global_batch == most
