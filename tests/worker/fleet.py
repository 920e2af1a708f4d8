"""A job as its data sees it: several workers, each with a source of its own, through any history.

Steps are applied or lost half-way, plans and workers change, everything is resumed from what was kept. What the sources
really handed out for applied steps is written down; the promise is checked on that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from rex_worker.loader import Source
from rex_worker.sampler import Outlook, Position

Samples = Callable[[Any], list[int]]

splits = st.lists(st.integers(1, 25), min_size=1, max_size=3)
events = st.one_of(
    st.tuples(st.just("plan"), splits),
    st.tuples(st.just("steps"), st.integers(1, 8)),
    st.tuples(st.just("steps"), st.integers(1, 8)),
    st.tuples(st.just("lost step"), st.integers(0, 3)),
    st.tuples(
        st.just("passes"), st.tuples(st.lists(st.integers(1, 4), min_size=3, max_size=3), st.none() | st.integers(1, 9))
    ),
    st.tuples(st.just("newcomer"), st.integers(0, 2)),
    st.tuples(st.just("keep"), st.just(0)),
    st.tuples(st.just("all die"), st.just(0)),
)
histories = st.lists(events, max_size=25)


class Fleet:
    """A group whose members share the data out by themselves, as workers do."""

    def __init__(self, source: Callable[[int], Source], samples: Samples, seed: int) -> None:
        self._source = source
        self._samples = samples
        self.sources: dict[int, Source] = {}
        self.batches = [3]
        self.passes, self.ceiling = [1, 1, 1], None
        self.position = Position(seed)
        self.steps = 0
        self.used: list[tuple[int, int]] = []
        """(epoch, sample) of every applied step, in order."""
        self.kept = (self.position, 0, 0)

    def play(self, history: list[tuple[str, Any]]) -> None:
        """Let it all happen."""
        for kind, value in history:
            match kind:
                case "plan":
                    self.batches = value
                case "passes":
                    self.passes, self.ceiling = value
                case "steps":
                    for _ in range(value):
                        self.step()
                case "lost step":
                    self.step(lost_after=value)
                case "newcomer":
                    self.sources.pop(value, None)
                case "keep":
                    self.kept = (self.position, len(self.used), self.steps)
                case "all die":
                    self.position, count, self.steps = self.kept
                    del self.used[count:]
                    self.sources.clear()

    def step(self, lost_after: int | None = None) -> None:
        """Take a step; one that is lost after so many passes counts for nothing."""
        taken: list[int] = []
        told = set()
        for rank in range(len(self.batches)):
            if rank not in self.sources:
                self.sources[rank] = self._source(rank)
            source = self.sources[rank]
            outlook = Outlook(self.position, tuple(self.batches), rank, self.passes[rank % 3], self.ceiling)
            layout = source.lay_out(outlook)
            told.add((layout.total, layout.ends_epoch, layout.mark))
            for number, part in enumerate(layout.passes[:lost_after]):
                samples = self._samples(source.fetch(number))
                assert len(samples) == len(part), "the batch is as large as it was laid out"
                assert self.ceiling is None or part.filler or len(samples) <= self.ceiling
                if not part.filler:
                    taken += samples
        ((total, ends_epoch, _),) = told  # every worker says the same
        if lost_after is None:
            assert len(taken) == total
            self.used += [(self.position.epoch, sample) for sample in taken]
            self.position = self.position.advance(total, ends_epoch=ends_epoch)
            self.steps += 1

    def check_exactly_once(self, size: int) -> None:
        """Bring the epoch at hand to its end; then nothing is missing and nothing doubled."""
        while self.position.offset:
            self.step()
        counts = Counter(self.used)
        assert set(counts.values()) <= {1}
        assert set(counts) == {(epoch, sample) for epoch in range(self.position.epoch) for sample in range(size)}
        assert [epoch for epoch, _ in self.used] == sorted(epoch for epoch, _ in self.used)
