"""Cannikin's rule: even, then by speed, then OptPerf; and once per pass over the data the best batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rex_operator.planning import PlanDraft, Planner, WorkerInfo
from rex_operator.planning.policies.node_lines import BACKWARD, ExchangeBook, NodeLines, line
from tests.planning.simulated import A100, MIX, T4, V100, Job, spec


def job(high: int = 4096, team: tuple[Any, ...] = MIX, seed: int = 0, *, epoch: int = 20_000, **more: Any) -> Job:
    planner = Planner(spec(64, 32, high, policy="cannikin"), np.random.default_rng(seed))
    options = {"noise": 0.02, "overhead_s": 0.012, "noise_scale": lambda samples: 600.0, **more}
    return Job.of(planner, team, seed=seed, epoch=epoch, **options)


def best_split(it: Job, batch: int) -> float:
    """The shortest step of a batch, found with the devices' true times."""
    tables = [np.array([d.seconds(b) for b in range(1, batch + 1)]) for d in it.devices.values()]
    steps = np.unique(np.concatenate(tables))
    done = sum(np.maximum(np.searchsorted(table, steps, side="right"), 1) for table in tables)
    enough = steps[np.searchsorted(done, batch)]
    return float(max(enough, *(table[0] for table in tables))) + it.overhead_s


# --- the models -------------------------------------------------------------------------------------------------------

FIRST, TWIN, OTHER = WorkerInfo("w0", "a", "t4"), WorkerInfo("w1", "b", "t4"), WorkerInfo("w2", "c", "a100")


def lines(*points: tuple[float, float]) -> NodeLines:
    book = NodeLines()
    book.team([FIRST])
    for size, seconds in points:
        book.learn(FIRST, size, seconds)
    return book


def total(book: NodeLines, size: float, worker: WorkerInfo = FIRST) -> float:
    nodes = book.nodes([worker], {worker.worker_id: None})
    assert nodes is not None
    (n,) = nodes
    return (n.q + n.k) * size + n.s + n.m


def test_a_line_through_two_sizes_or_more() -> None:
    book = lines((10, 0.11), (20, 0.21), (40, 0.41))
    assert total(book, 30) == pytest.approx(0.31)
    nodes = book.nodes([FIRST], {"w0": 7})
    assert nodes is not None and nodes[0].cap == 7
    assert nodes[0].k / (nodes[0].k + nodes[0].q) == pytest.approx(BACKWARD)


def test_one_size_is_half_fixed_cost_and_nonsense_is_proportional() -> None:
    assert line({10.0: 0.2}) == pytest.approx((0.01, 0.1))
    assert line({10.0: 0.2, 20.0: 0.1}) == pytest.approx((0.005, 0.0))
    assert line({10.0: 0.1, 20.0: 0.4}) == pytest.approx((0.02, 0.0))


def test_a_worker_that_became_slower_keeps_the_shape_of_its_line() -> None:
    book = lines((10, 0.11), (20, 0.21), (20, 0.42))
    assert total(book, 10) == pytest.approx(0.22)
    assert total(book, 40) == pytest.approx(0.82)


def test_a_size_far_outside_bends_the_line_instead() -> None:
    book = lines((10, 0.11), (20, 0.21), (80, 1.21))
    assert total(book, 80) > 1.1 and total(book, 20) < 0.35


def test_a_newcomer_takes_its_kinds_line_and_leaves_it_alone() -> None:
    book = lines((10, 0.11), (20, 0.21))
    book.team([FIRST, TWIN, OTHER])
    assert book.sizes(TWIN) == 2 and book.sizes(OTHER) == 0
    book.learn(TWIN, 15, 0.32)
    assert total(book, 15) == pytest.approx(0.16)
    assert book.nodes([FIRST, OTHER], {"w0": None, "w2": None}) is None


def test_two_regimes_of_the_exchange_are_told_apart() -> None:
    book = ExchangeBook()
    for batch, compute in ((64, 0.02), (90, 0.03), (128, 0.04), (256, 0.08), (512, 0.16)):
        backward = BACKWARD * compute
        book.learn(batch, compute, 0.005 + max(0.0, 0.03 - 0.8 * backward))
    found = book.exchange()
    assert (found.gamma, found.t_o, found.t_u) == pytest.approx((0.2, 0.03, 0.005), rel=0.05)


def test_an_exchange_that_is_always_the_same_has_one_regime() -> None:
    book, rng = ExchangeBook(), np.random.default_rng(0)
    for batch in (64, 128, 256, 512):
        book.learn(batch, batch / 1000, 0.02 + 0.0005 * float(rng.normal()))
    found = book.exchange()
    assert found.t_o == 0.0 and found.t_u == pytest.approx(0.02, rel=0.05)


# --- in a job ---------------------------------------------------------------------------------------------------------


def test_even_then_by_speed_then_optperf() -> None:
    it = job(64, noise_scale=lambda samples: 1.0)
    it.run(60)
    first, second = it.drafts[0].local_batches, it.drafts[1].local_batches
    assert max(first.values()) - min(first.values()) <= 1
    speed = {w: 16 / it.compute_s(w, it.drafts[0]) for w in it.devices}
    for worker, share in second.items():
        assert share == pytest.approx(64 * speed[worker] / sum(speed.values()), abs=1.5)
    assert it.plan is not None
    assert it.step_s(it.plan) <= 1.03 * best_split(it, 64)


@pytest.mark.parametrize("seed", range(3))
def test_shares_come_within_a_few_percent_of_the_best_split(seed: int) -> None:
    it = job(512, seed=seed, noise_scale=lambda samples: 1e5)
    it.run(90)
    assert it.plan is not None and it.plan.global_batch >= 400
    assert it.step_s(it.plan) <= 1.05 * best_split(it, it.plan.global_batch)


def test_batch_and_goodput_are_near_the_best_there_is() -> None:
    it = job()
    it.run(120)
    assert it.plan is not None

    def goodput(batch: int) -> float:
        return batch / best_split(it, batch) * (600 + 64) / (600 + batch)

    best = max(goodput(int(batch)) for batch in np.geomspace(64, 4096, 20))
    assert it.goodput(it.plan) >= 0.93 * best


def test_decisions_come_only_with_a_new_pass() -> None:
    it = job(epoch=2**40)
    it.run(60)
    assert it.kinds() == ["membership"]


def test_a_slower_worker_gets_less_after_the_pass() -> None:
    it = job(256, epoch=8000)
    it.run(90)
    assert it.plan is not None
    before = it.plan.local_batches["w0"]
    it.slow["w0"] = 2.0
    it.run(60)
    assert it.plan.local_batches["w0"] < 0.7 * before
    assert it.step_s(it.plan) <= 1.1 * min(
        it.step_s(PlanDraft(it.plan.global_batch, 1, shares, 1.0)) for shares in around(it.plan)
    )


def around(plan: PlanDraft) -> list[dict[str, int]]:
    found, names = [], list(plan.local_batches)
    for giver in names:
        for taker in names:
            for amount in (1, 4, 12):
                if giver != taker and plan.local_batches[giver] > amount:
                    shares = dict(plan.local_batches)
                    shares[giver] -= amount
                    shares[taker] += amount
                    found.append(shares)
    return found


def test_equal_devices_are_not_moved_about() -> None:
    it = job(64, (V100,) * 4, noise_scale=lambda samples: 1.0)
    it.run(120)
    assert it.kinds().count("rebalanced") <= 1


def test_memory_ceilings_are_kept_and_lead_to_more_passes() -> None:
    it = job(memory={"a100": 60, "v100": 40, "t4": 20}, noise_scale=lambda samples: 1e5)
    it.run(120)
    assert it.plan is not None and it.plan.accumulation > 1
    for worker, share in it.plan.local_batches.items():
        assert share <= it.memory[it.devices[worker].kind] * it.plan.accumulation


def test_a_worker_of_a_known_kind_is_shared_for_at_once() -> None:
    it = job(64, noise_scale=lambda samples: 1.0)
    it.run(60)
    it.join({"new": A100, "old": T4})
    assert it.plan is not None
    assert it.plan.local_batches["new"] > 2 * it.plan.local_batches["old"]
    assert it.plan.local_batches["new"] == pytest.approx(it.plan.local_batches["w0"], abs=2)


def test_one_worker_alone_has_all_of_each_batch() -> None:
    it = job(team=(T4,), epoch=2000)
    it.run(60)
    assert all(dict(draft.local_batches) == {"w0": draft.global_batch} for draft in it.drafts)
