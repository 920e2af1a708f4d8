"""LBB's models and thresholds, checked on its own cluster's records: where they lead, and how well they predict."""

from __future__ import annotations

import numpy as np
import pytest

from rex_operator.planning.policies.cubic import Cubic, evened
from rex_operator.planning.policies.lbb import FINE, REBUILD, Lbb
from rex_operator.simulation.published.lbb import Record, records
from tests.planning.policies.balancing import Bench, line
from tests.published import needs_data, published


def record(start: str) -> Record:
    (found,) = [r for r in records(published() / "lbb") if r.name.startswith(start)]
    return found


def by_size(run: Record, worker: int, least: int = 20) -> dict[float, float]:
    """Return the mean seconds by size where a size was run often enough."""
    kept = run.iteration > 0
    sizes, seconds = run.batch[kept, worker], run.compute_s[kept, worker]
    return {float(b): float(seconds[sizes == b].mean()) for b in np.unique(sizes) if (sizes == b).sum() >= least}


@needs_data
def test_from_equal_shares_to_the_shares_that_its_own_cluster_came_to() -> None:
    even = record("cifar10_resnet18_4GPU_even")
    tuned = record("cifar10_resnet18_4GPU_tuned")
    ends = [(by_size(even, i), by_size(tuned, i, 500)) for i in range(4)]
    devices = {}
    for i, (first, then) in enumerate(ends):
        known = {**first, **then}
        slope, level = np.polyfit(list(known), list(known.values()), 1)
        devices[f"w{i}"] = line(float(level), float(slope))
    run = Bench(Lbb(), devices, 512)
    assert run.shares == dict.fromkeys(devices, 128)
    assert run.effect > REBUILD
    run.rounds(6)
    assert run.effect < FINE
    reached, theirs = np.array(list(run.shares.values())), tuned.batch[-1000:].mean(axis=0)
    assert np.abs(reached - theirs).max() <= 6, "of 512, as the published run's own last thousand iterations"
    assert run.times().max() == pytest.approx(tuned.compute_s[-1000:].max(axis=1).mean(), rel=0.05)


@needs_data
@pytest.mark.parametrize("worker", range(4))
def test_profiled_cubics_predict_within_the_published_error(worker: int) -> None:
    """Published: -6.52 % to +1.20 % per worker for the profiled cubic; here sizes that the fit has not seen."""
    profile = by_size(record("cifar100_vit_4GPU_tuned"), worker)
    seen = {b: t for b, t in profile.items() if b % 2 == 0}
    model = Cubic.fit(seen)
    errors = [model.time(b) / t - 1 for b, t in profile.items() if b % 2 and model.low < b < model.high]
    assert errors
    assert max(abs(e) for e in errors) <= 0.0652


@needs_data
@pytest.mark.parametrize("worker", range(3))
def test_rapid_linear_models_predict_within_the_published_error(worker: int) -> None:
    """Published: -11.83 % to +5.30 % for the line through the intercept and one new measurement."""
    even, tuned = (by_size(record(f"cifar10_resnet18_4GPU_{kind}"), worker, 400) for kind in ("even", "tuned"))
    ((size, seconds),) = even.items()
    model = Cubic.fit({size: seconds}).rebuilt(seconds, size)
    errors = [model.time(b) / t - 1 for b, t in tuned.items()]
    assert all(-0.1183 <= e <= 0.053 for e in errors)


def test_thresholds_are_the_papers() -> None:
    devices = {"w0": line(0, 0.001), "w1": line(0, 0.001)}
    run = Bench(Lbb(), devices, 200)
    run.rounds(2)
    devices["w1"] = run.devices["w1"] = line(0, 0.00104)
    assert run.run() is None, "a straggler effect below 5 % stays"
    run.devices["w1"] = line(0, 0.0012)
    found = run.run()
    assert found is not None
    assert found.shares == {"w0": 101, "w1": 99}, "below 30 % one sample moves"
    run.devices["w1"] = line(0, 0.002)
    found = run.run()
    assert found is not None
    assert found.shares == {"w0": 133, "w1": 67}, "above, models are rebuilt and solved"
    run.devices["w1"] = line(0, 0.004)
    found = run.run()
    assert found is not None
    assert found.shares == {"w0": 134, "w1": 66}, "in the window after a rebuild there is only fine tuning"


def test_the_solution_evens_out_cubics_and_does_not_leave_the_profile_by_a_cubics_tail() -> None:
    sizes = (8.0, 16.0, 32.0, 64.0, 128.0)
    fast = Cubic.fit({b: 0.02 + 0.001 * b + 1e-8 * b**3 for b in sizes})
    slow = Cubic.fit({b: 0.03 + 0.004 * b + 3e-8 * b**3 for b in sizes})
    found = evened([fast, fast, slow], np.full(3, 60.0), 1.0, np.full(3, 180.0))
    times = [m.time(b) for m, b in zip((fast, fast, slow), found, strict=True)]
    assert found.sum() == pytest.approx(180)
    assert np.ptp(times) <= 1e-3 * max(times)
    assert fast.time(4096) == pytest.approx(fast.time(128) + (0.001 + 3e-8 * 128**2) * (4096 - 128), rel=1e-6)


def test_many_workers_have_the_same_solution_by_bisection() -> None:
    models = [Cubic.fit({b: 0.01 + c * b for b in (8.0, 16.0, 32.0, 64.0)}) for c in (0.001, 0.002) * 20]
    found = evened(models, np.full(40, 30.0), 1.0, np.full(40, 1200.0))
    times = [m.time(b) for m, b in zip(models, found, strict=True)]
    assert found.sum() == pytest.approx(1200, rel=1e-6)
    assert np.ptp(times) <= 1e-6
