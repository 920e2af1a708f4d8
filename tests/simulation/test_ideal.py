"""The bound of the comparison is one: nobody beats it, and where no plan is better than one known, it is that one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks._ideal import Ideal, fastest
from rex_operator.planning.policies import POLICIES
from rex_operator.simulation import scenario
from rex_operator.simulation.devices import Bent
from rex_operator.simulation.run import run
from rex_operator.simulation.scenario import Event, Scenario
from rex_operator.simulation.workload import OVERHEAD_S, REGROUP_S
from tests.simulation.workloads import work

WORK = work(steps=150)
STILL = scenario.static()


@pytest.mark.parametrize("policy", ["rex", "cannikin"])
@pytest.mark.parametrize("make", [lambda devices: STILL, scenario.straggler, scenario.changing])
def test_no_policy_beats_it(policy: str, make: object) -> None:
    assert callable(make) and policy in POLICIES
    happens = make(WORK.devices)
    result = run(WORK.job(policy, 0), happens, WORK.course.target, 1e6)
    # the last step goes beyond the target by a part of it, and noise may help a little in few steps
    assert Ideal(WORK).seconds(happens) < result.seconds * 1.01


def test_alone_at_a_fixed_batch_it_is_what_the_device_takes() -> None:
    one = replace(work(("a100",), steps=300), initial=32, largest=32)
    per_step = one.devices[0].seconds(32) + OVERHEAD_S
    steps = one.course.target / 32  # the base batch: all of its samples are useful
    assert 0.995 * steps * per_step < Ideal(one).seconds(STILL) < steps * per_step


def test_what_slows_a_worker_costs_time_and_a_changed_group_its_seconds() -> None:
    ideal, still = Ideal(WORK), Ideal(WORK).seconds(STILL)
    slow = Scenario("slow", (Event(0.0, slow={0: 3.0, 1: 3.0, 2: 3.0}),))
    assert 2 * still < ideal.seconds(slow) < 3 * still, "communication is not slowed"
    again = Scenario("again", (Event(0.5, leave=(2,), join={2: WORK.devices[2]}),))
    assert ideal.seconds(again) == pytest.approx(still + REGROUP_S)
    assert ideal.seconds(STILL) == still


def test_a_device_takes_its_samples_in_the_passes_that_are_fastest() -> None:
    device = Bent("small", 0.01, 0.001, most=10)
    assert fastest(device, 25)[[1, 10, 11, 20, 25]] == pytest.approx([0.011, 0.02, 0.031, 0.04, 0.055])
    dear = Bent("dear", 0.0, 0.001, knee=8.0, most=20)
    many = min(p * dear.seconds(40 / p) for p in range(2, 41))
    assert fastest(dear, 40)[40] == pytest.approx(many)


def test_doing_more_never_takes_less_time() -> None:
    seconds = fastest(WORK.devices[0], WORK.largest)
    assert (np.diff(seconds) >= 0).all()
