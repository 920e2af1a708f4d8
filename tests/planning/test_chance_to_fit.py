"""What may fit in memory is a chance between what ran and what failed; bytes sharpen it, and nothing else moves it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rex_operator.planning.devices import Devices, DevicesState, Sighting
from rex_operator.planning.memory import Limits, meeting
from rex_operator.planning.types import WorkerInfo

GIB = float(2**30)
WORKER = WorkerInfo("w0", "life", "t4", memory_bytes=int(16 * GIB))


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    ran = draw(st.floats(1, 500))
    return Limits(
        ran,
        draw(st.one_of(st.none(), st.floats(1.01, 8).map(lambda f: f * ran))),
        draw(st.one_of(st.none(), st.floats(1, 2000))),
        draw(st.one_of(st.none(), st.floats(1, 5000))),
        draw(st.floats(0.05, 0.5)),
    )


@given(limits())
def test_c_171_certain_up_to_what_ran_impossible_from_what_failed_and_falling_between(known: Limits) -> None:
    sizes = np.geomspace(0.5, 8000, 300)
    chance = known.chance(sizes)
    assert ((chance >= 0) & (chance <= 1)).all()
    assert (np.diff(chance) <= 1e-9).all()
    top = min(known.failed or math.inf, math.inf if known.ceiling is None else math.floor(known.ceiling) + 1)
    assert (chance[(sizes <= known.ran) & (sizes < top)] == 1).all()
    assert (chance[sizes >= top] == 0).all()


def test_without_bytes_each_doubling_is_a_risk() -> None:
    known = Limits(64.0)
    assert known.chance([64, 128, 256]) == pytest.approx([1.0, math.exp(-0.2), math.exp(-0.4)])


def test_c_170_a_failure_above_raises_doubt_only_near_it() -> None:
    known = Limits(64.0, failed=256.0)
    near, far = known.chance([72, 250])
    assert near > 0.85 and far < 0.02


def test_bytes_tell_where_it_ends() -> None:
    found = meeting({32.0: 3 * GIB, 64.0: 5 * GIB}, 16 * GIB)
    assert found is not None and found[0] == pytest.approx(32 + 13 * 16)
    known = Limits(64.0, estimate=found[0], spread=found[1])
    fits, edge, beyond = known.chance([128, 240, 480])
    assert fits > 0.99 and 0.4 < edge < 0.6 and beyond < 0.01


def test_one_size_tells_less_and_says_so() -> None:
    one, two = meeting({64.0: 5 * GIB}, 16 * GIB), meeting({32.0: 2.5 * GIB, 64.0: 5 * GIB}, 16 * GIB)
    assert one is not None and two is not None
    assert one[0] > 64 * 16 / 5, "something of the peak does not grow"
    assert one[1] > 1.5 * two[1]


@pytest.mark.parametrize("peaks", [{}, {64.0: 0.0}, {32.0: 5 * GIB, 64.0: 4 * GIB}])
def test_c_168_memory_that_is_unknown_or_falls_with_the_batch_tells_nothing(peaks: dict[float, float]) -> None:
    assert meeting(peaks, 16 * GIB) is None


def test_memory_that_is_full_already_leaves_no_room() -> None:
    found = meeting({32.0: 8 * GIB, 64.0: 16 * GIB}, 16 * GIB)
    assert found is not None and found[0] == 64.0


def test_devices_remember_peaks_by_size_boundedly_and_through_a_restart() -> None:
    devices = Devices()
    devices.learn([Sighting(WORKER, 32, 0.1, 1e-4)], at=0.0, moved=True)
    for size in range(1, 200):
        devices.used(WORKER, size, size * GIB / 16)
    devices.used(WORKER, 199, GIB)  # an earlier maximum stands
    state = DevicesState.model_validate_json(devices.state().model_dump_json())
    assert len(state.kinds["t4"].peaks) <= 16
    known = Devices(state).limits(WORKER)
    assert known.estimate == pytest.approx(0.95 * 256, rel=0.01)
    assert float(known.chance(32)) == 1.0 and float(known.chance(300)) < 0.01


def test_a_worker_that_does_not_know_its_bytes_has_bounds_only() -> None:
    devices = Devices()
    devices.learn([Sighting(WORKER, 32, 0.1, 1e-4)], at=0.0, moved=True)
    devices.used(WORKER, 32, 0.0)
    devices.out_of_memory(WORKER, 100)
    known = devices.limits(WORKER)
    assert (known.ran, known.failed, known.ceiling, known.estimate) == (32.0, 100.0, 90.0, None)
