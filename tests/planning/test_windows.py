"""A window holds each step of the group once, of one life, one plan, in full; everything else is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rex_operator.planning.types import WorkerInfo
from rex_operator.planning.windows import Ingest
from rex_worker.protocol import StepReport

SHARES = {"w0": 10, "w1": 6, "w2": 4}


def infos(life: str = "1") -> list[WorkerInfo]:
    return [WorkerInfo(worker, f"{worker}-{life}", "any") for worker in SHARES]


def report(step: int, worker: str, version: int = 1, **changes: Any) -> StepReport:
    seconds = 0.1 + 0.001 * (step % 7) + 0.01 * int(worker[1])
    fields: dict[str, Any] = {
        "step": step,
        "plan_version": version,
        "samples": step * 20,
        "local_batch": SHARES[worker],
        "compute_s": seconds,
        "wait_s": 0.0,
        "step_s": seconds,
        "loss": 1.0,
    }
    return StepReport(**(fields | changes))


def ingest(warmup_steps: int = 0) -> Ingest:
    taken = Ingest(warmup_steps, length=1000)
    taken.members(infos(), 0.0)
    taken.begin(1, 1, SHARES, first=1, now=0.0)
    return taken


def times(taken: Ingest) -> list[float]:
    assert taken.window is not None
    return [s.step_s for s in taken.window.ripe()]


def test_a_step_counts_when_all_workers_have_told_it() -> None:
    taken = ingest()
    assert taken.take("w0", "w0-1", 1, report(1, "w0"), 0.0) is None
    assert taken.take("w1", "w1-1", 1, report(1, "w1"), 0.0) is None
    whole = taken.take("w2", "w2-1", 1, report(1, "w2"), 0.0)
    assert whole is not None
    assert whole.step_s == report(1, "w2").step_s, "the slowest worker's time is the group's"
    assert whole.compute_s.tolist() == [report(1, w).compute_s for w in SHARES]


def test_c_136_repeats_and_disorder_change_nothing_and_gaps_only_remove() -> None:
    rng = np.random.default_rng(0)
    clean = ingest()
    everything = [(step, worker) for step in range(1, 601) for worker in SHARES]
    dropped = {everything[i] for i in rng.choice(len(everything), len(everything) // 10, replace=False)}
    for step, worker in everything:
        if not any((step, other) in dropped for other in SHARES):
            clean.take(worker, f"{worker}-1", 1, report(step, worker), 0.0)
    messy = ingest()
    arrivals = []
    for step, worker in everything:
        if (step, worker) not in dropped:
            arrivals += [(step * 0.1 + rng.uniform(0, 30), step, worker) for _ in range(rng.integers(1, 4))]
    for at, step, worker in sorted(arrivals):
        messy.take(worker, f"{worker}-1", 1, report(step, worker), at)
    assert times(messy) == times(clean)
    assert messy.set_aside["duplicate"] > 0


def test_c_132_an_earlier_life_of_the_same_name_never_mixes_in() -> None:
    taken = ingest()
    for worker in SHARES:
        taken.take(worker, f"{worker}-1", 1, report(1, worker), 0.0)
    reborn = [w if w.worker_id != "w2" else WorkerInfo("w2", "w2-2", "other") for w in infos()]
    taken.members(reborn, 1.0)
    taken.begin(2, 2, SHARES, first=2, now=1.0)
    assert times(taken) == []
    for worker in SHARES:
        taken.take(worker, f"{worker}-1", 2, report(2, worker, version=2), 1.0)
    assert times(taken) == []
    assert taken.set_aside["other life"] == 1
    taken.take("w2", "w2-2", 2, report(2, "w2", version=2, step_s=9.0), 1.0)
    assert times(taken) == [9.0]


@pytest.mark.parametrize(("generation", "version"), [(1, 1), (2, 1), (1, 3)])
def test_reports_of_another_plan_or_generation_are_set_aside(generation: int, version: int) -> None:
    taken = ingest()
    taken.members(infos(), 1.0)
    taken.begin(3, 2, SHARES, first=1, now=1.0)
    for worker in SHARES:
        taken.take(worker, f"{worker}-1", generation, report(1, worker, version=version), 1.0)
    assert times(taken) == []
    assert taken.set_aside["other plan"] == 3


def test_reports_that_come_before_the_plan_is_known_to_run_are_kept_for_it() -> None:
    taken = ingest()
    for worker in SHARES:
        taken.take(worker, f"{worker}-1", 1, report(5, worker, version=2), 0.0)
    taken.begin(2, 1, SHARES, first=5, now=0.0)
    assert len(times(taken)) == 1


def test_marked_and_short_steps_are_not_timed() -> None:
    taken = ingest()
    for worker in SHARES:
        taken.take(worker, f"{worker}-1", 1, report(1, worker, marks=["checkpoint"] if worker == "w1" else []), 0.0)
        taken.take(worker, f"{worker}-1", 1, report(2, worker, local_batch=1), 0.0)
        taken.take(worker, f"{worker}-1", 1, report(3, worker), 0.0)
    assert len(times(taken)) == 1
    assert taken.set_aside["marked or short"] == 6


def test_c_139_the_loss_is_weighted_by_samples() -> None:
    shares = {"w0": 100, "w1": 60, "w2": 40}
    taken = Ingest(0, 100)
    taken.members(infos(), 0.0)
    taken.begin(1, 1, shares, first=1, now=0.0)
    for loss, (worker, share) in enumerate(shares.items(), 1):
        whole = taken.take(worker, f"{worker}-1", 1, report(1, worker, local_batch=share, loss=float(loss)), 0.0)
    assert whole is not None and whole.loss == pytest.approx(1.7)


def test_a_loss_that_is_not_finite_is_a_signal() -> None:
    taken = ingest()
    for worker in SHARES:
        lost = worker == "w1"
        taken.take(worker, f"{worker}-1", 1, report(1, worker, loss=None if lost else 1.0, diverged=lost), 0.0)
    assert taken.window is not None and taken.window.diverged


def test_c_142_what_waits_for_its_peers_is_bounded() -> None:
    taken = Ingest(0, 50)
    taken.members(infos(), 0.0)
    taken.begin(1, 1, SHARES, first=1, now=0.0)
    for step in range(1, 20_001):
        taken.take("w0", "w0-1", 1, report(step, "w0"), 0.0)
    assert taken.window is not None
    assert len(taken.window._pending) <= 16_384
    assert taken.set_aside["incomplete"] > 0
    for step in range(20_001, 20_201):
        for worker in SHARES:
            taken.take(worker, f"{worker}-1", 1, report(step, worker), 0.0)
    assert len(times(taken)) == 50


def test_c_138_silence_is_noticed_by_the_time_of_arrival() -> None:
    taken = ingest()
    for step in range(1, 30):
        for worker in SHARES:
            if worker != "w1" or step < 10:
                taken.take(worker, f"{worker}-1", 1, report(step, worker), float(step))
    assert taken.stale(15.0) == frozenset()
    assert taken.stale(29.0) == {"w1"}
    taken.take("w1", "w1-1", 1, report(10, "w1"), 29.5)
    assert taken.stale(30.0) == frozenset()
