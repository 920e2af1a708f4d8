"""A job is done when it is as far as the published run was, however it got there."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rex_operator.simulation.learning import Course, worth
from rex_operator.simulation.published import BadData, pollux, sia
from rex_operator.simulation.published.pollux import Trajectory
from rex_operator.simulation.workload import workload
from tests.published import needs_data, published
from tests.simulation import workloads


def trajectory(noise: list[float], each: float = 1e6) -> Trajectory:
    """A run of one epoch per noise scale; ``each`` has so many steps of the base batch, 32."""
    progress = each * np.arange(1.0, len(noise) + 1)
    return Trajectory("net", 32, 32, progress, progress, progress, np.array(noise))


def steps_to(course: Course, batch: int) -> int:
    progress, steps = 0.0, 0
    while progress < course.target:
        progress += worth(course.noise_scale(progress), batch, course.base_batch)
        steps += 1
    return steps


@pytest.mark.parametrize("batch", [32, 128, 1024])
def test_the_given_number_of_steps_reaches_the_target(batch: int) -> None:
    course = Course.of(trajectory([50.0, 200.0, 900.0, 4000.0]), batch, 2000)
    assert steps_to(course, batch) == pytest.approx(2000, rel=0.01)


def test_a_larger_batch_needs_fewer_steps_and_more_samples() -> None:
    course = Course.of(trajectory([50.0, 200.0, 900.0]), 64, 2000)
    small, large = steps_to(course, 64), steps_to(course, 512)
    assert large < small and large * 512 > small * 64


def test_the_noise_scale_is_that_of_the_same_part_of_the_way() -> None:
    course = Course.of(trajectory([50.0, 200.0, math.inf, 800.0]), 32, 1000)
    at = [course.noise_scale(part * course.target) for part in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert at == pytest.approx([50.0, 50.0, 200.0, 400.0, 800.0])


def test_what_is_not_published_is_named() -> None:
    with pytest.raises(BadData, match="no published step times of net on one h100; there are a100, t4, v100"):
        workload("net", ("t4", "h100"), workloads.tables(), workloads.runs())
    with pytest.raises(BadData, match="no published training runs of net"):
        workload("net", ("t4",), workloads.tables(), [])


def test_the_initial_batch_gives_each_worker_its_samples() -> None:
    assert workloads.work(("t4",) * 4).initial == 32
    assert workloads.work(("t4",) * 5).initial == 64
    assert workloads.work().largest == 512


def test_a_course_is_no_longer_than_the_published_run() -> None:
    run = trajectory([50.0, 200.0, 900.0], each=1000.0)
    asked = Course.of(run, 64, 10)
    assert asked.steps == 10 and asked.shortened > 1
    whole = Course.of(run, 64, 10_000)
    assert whole.shortened == 1.0 and whole.target == 3000.0 * 32
    assert whole.steps == pytest.approx(10 * asked.shortened, abs=1)
    assert steps_to(whole, 64) == pytest.approx(whole.steps, rel=0.01)


@needs_data
def test_runs_are_as_long_as_published_where_more_steps_are_asked_for() -> None:
    tables, runs = sia.tables(published() / "sia"), pollux.trajectories(published() / "pollux")
    models = ("cifar10", "bert", "imagenet", "yolov3", "deepspeech2", "ncf")
    steps = {m: workload(m, ("t4", "2080ti", "v100", "a100"), tables, runs, 10**7).course.steps for m in models}
    assert list(steps.values()) == [39063, 3945, 576526, 29167, 14917, 194174]


@needs_data
def test_the_base_batch_takes_as_many_steps_as_published_when_nothing_is_shortened() -> None:
    for run in pollux.trajectories(published() / "pollux"):
        if run.batch == run.base_batch:
            course = Course.of(run, run.batch, int(run.iteration[-1]))
            assert course.shortened == pytest.approx(1.0, rel=1e-3)
