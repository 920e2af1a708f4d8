"""Promise 2 on the pure sampler: a model of a job goes through any history; each sample counts once per epoch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rex_worker.sampler import EpochOrder, Layout, Outlook, Position, micro_batches, permutation, split_in_proportion


class Job:
    """A group as its sampler sees it: steps applied or lost, and a checkpoint to fall back on."""

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.order = EpochOrder(size)
        self.position = Position(seed)
        self.used: list[tuple[int, int]] = []
        """(epoch, sample) of every applied step, in order."""
        self.kept = (self.position, 0)

    def step(self, batches: list[int], applied: bool, accumulation: int = 1, ceiling: int | None = None) -> None:
        layouts = [
            Outlook(self.position, tuple(batches), rank, accumulation, ceiling).lay_out(
                self.size - self.position.offset
            )
            for rank in range(len(batches))
        ]
        assert all(layout.share <= batch for layout, batch in zip(layouts, batches, strict=True))
        assert len({(layout.total, layout.ends_epoch) for layout in layouts}) == 1
        taken = [index for layout in layouts for index in self.taken(layout)]
        assert len(taken) == layouts[0].total
        if applied:
            self.used += [(self.position.epoch, index) for index in taken]
            self.position = self.position.advance(len(taken), ends_epoch=layouts[0].ends_epoch)

    def taken(self, layout: Layout) -> list[int]:
        rows = [self.order.rows(self.position.seed, part).tolist() for part in layout.passes]
        assert [len(part) for part in rows] == [len(part) for part in layout.passes]
        return [index for part in rows for index in part] if layout.share else []

    def keep(self) -> None:
        self.kept = (self.position, len(self.used))

    def resume(self) -> None:
        self.position, count = self.kept
        del self.used[count:]


splits = st.lists(st.integers(1, 40), min_size=1, max_size=8)
events = st.one_of(
    st.tuples(st.just("plan"), splits),
    st.tuples(st.just("steps"), st.integers(1, 12)),
    st.tuples(st.just("lost step"), st.just(0)),
    st.tuples(st.just("passes"), st.tuples(st.integers(1, 5), st.none() | st.integers(1, 9))),
    st.tuples(st.just("keep"), st.just(0)),
    st.tuples(st.just("all die"), st.just(0)),
)


@given(size=st.integers(1, 300), seed=st.integers(0, 2**40), history=st.lists(events, max_size=40), last=splits)
@settings(max_examples=300, deadline=None)
def test_any_history_of_resizes_losses_and_resumes_uses_each_sample_once(
    size: int, seed: int, history: list[tuple[str, object]], last: list[int]
) -> None:
    job, batches = Job(size, seed), [3]
    passes: tuple[int, int | None] = (1, None)
    for kind, value in history:
        match kind, value:
            case "plan", list():
                batches = value
            case "steps", int():
                for _ in range(value):
                    job.step(batches, True, *passes)
            case "passes", (int(), _):
                passes = value  # type: ignore[assignment]
            case "lost step", _:
                job.step(batches, False, *passes)
            case "keep", _:
                job.keep()
            case "all die", _:
                job.resume()
    while job.position.offset:
        job.step(last, applied=True)
    counts = Counter(job.used)
    assert set(counts.values()) <= {1}
    assert len(counts) == job.position.epoch * size
    assert [epoch for epoch, _ in job.used] == sorted(epoch for epoch, _ in job.used)


@pytest.mark.parametrize(("before", "after"), [(4, 3), (3, 4)])
def test_c_104_resize_after_twelve_steps(before: int, after: int) -> None:
    job = Job(1000, seed=1)
    for _ in range(12):
        job.step([10] * before, applied=True)
    while job.position.epoch == 0:
        job.step([10] * after, applied=True)
    assert Counter(job.used) == Counter((0, index) for index in range(1000))


def test_c_104_ten_random_resizes_and_kills() -> None:
    rng = np.random.default_rng(5)
    job = Job(1000, seed=2)
    for _ in range(10):
        batches = [int(b) for b in rng.integers(1, 12, size=rng.integers(1, 6))]
        for _ in range(int(rng.integers(1, 20))):
            job.step(batches, applied=bool(rng.random() < 0.8))
    while job.position.epoch < 5:
        job.step([30, 11], applied=True)
    assert set(Counter(entry for entry in job.used if entry[0] < 5).values()) == {1}
    assert sum(epoch < 5 for epoch, _ in job.used) == 5000


@pytest.mark.parametrize("world", [1, 3, 8])
def test_c_120_state_of_four_serves_any_world_size(world: int) -> None:
    job = Job(503, seed=3)
    for _ in range(7):
        job.step([10, 9, 8, 7], applied=True)
    job.keep()
    other = Job(503, seed=0)
    other.position, other.used = job.position, list(job.used)
    while other.position.epoch == 0:
        other.step([6] * world, applied=True)
    assert Counter(other.used) == Counter((0, index) for index in range(503))


@pytest.mark.parametrize("stop_at", [4, 5, 6])
def test_c_106_resume_around_the_epoch_boundary_keeps_the_number_of_steps(stop_at: int) -> None:
    def steps(job: Job) -> int:
        count = 0
        while job.position.epoch < 3:
            job.step([10], applied=True)
            count += 1
        return count

    whole = steps(Job(50, seed=4))
    job = Job(50, seed=4)
    for _ in range(stop_at):
        job.step([10], applied=True)
    job.keep()
    job.resume()
    assert stop_at + steps(job) == whole == 15


def test_c_109_workers_agree_on_the_order_and_epochs_differ() -> None:
    orders = [permutation(7, epoch, 1000) for epoch in range(4)]
    assert all((permutation(7, epoch, 1000) == order).all() for epoch, order in enumerate(orders))
    assert len({order.tobytes() for order in orders}) == 4
    newcomer, old = EpochOrder(1000), EpochOrder(1000)
    layout = Outlook(Position(7, 3, 40), (5, 7), rank=1).lay_out(960)
    old.rows(7, Outlook(Position(7), (10,), rank=0).lay_out(1000).passes[0])
    assert [newcomer.rows(7, p).tolist() for p in layout.passes] == [old.rows(7, p).tolist() for p in layout.passes]


def test_without_shuffling_each_epoch_has_the_datasets_own_order() -> None:
    order = EpochOrder(100, shuffle=False)
    for epoch in range(2):
        (part,) = Outlook(Position(7, epoch, 40), (10,), rank=0).lay_out(60).passes
        assert order.rows(7, part).tolist() == list(range(40, 50))


@given(total=st.integers(0, 5000), shares=st.lists(st.integers(1, 500), min_size=1, max_size=12))
def test_a_split_in_proportion_sums_and_gives_nobody_more_than_its_share(total: int, shares: list[int]) -> None:
    total = min(total, sum(shares))
    parts = split_in_proportion(total, shares)
    assert sum(parts) == total
    assert all(0 <= part <= share for part, share in zip(parts, shares, strict=True))
    assert all(abs(part - total * share / sum(shares)) < 1 + 1e-9 for part, share in zip(parts, shares, strict=True))


@given(count=st.integers(1, 200), accumulation=st.integers(1, 20), ceiling=st.none() | st.integers(1, 50))
def test_micro_batches_keep_each_sample_and_the_ceiling(count: int, accumulation: int, ceiling: int | None) -> None:
    passes = micro_batches(count, accumulation, ceiling)
    assert sum(passes) == count
    assert all(1 <= size <= (ceiling or count) for size in passes)
    assert max(passes) - min(passes) <= 1
    assert len(passes) >= min(accumulation, count)


def test_a_step_without_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples are left in epoch 2 at 10"):
        Outlook(Position(0, 2, 10), (5,), rank=0).lay_out(0)
    with pytest.raises(ValueError, match="a step of 0 samples"):
        Position(0, 0, 8).advance(0, ends_epoch=False)
