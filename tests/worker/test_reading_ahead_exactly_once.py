"""Promise 2 with processes that read ahead: what was read for a future that did not come counts for nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rex_worker.loader import MapSource, Source
from rex_worker.recipe import recipe
from rex_worker.streams import StreamSource
from tests.worker.fleet import Fleet, histories, splits
from tests.worker.test_streams_exactly_once import Shuffled

pytestmark = [
    pytest.mark.component,
    # Python 3.12 warns of what torch's DataLoader does everywhere.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

CPU = torch.device("cpu")
SIZE = 97


class By:
    """Who read a sample; no plain data, so that it does not belong to what must be the same on all workers."""

    def __init__(self) -> None:
        self.pid = os.getpid()


class Numbers(torch.utils.data.Dataset[tuple[int, By]]):
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[int, By]:
        return index, By()


class Signed(Shuffled):
    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            yield item, By()


def of_map(rank: int) -> Source:
    return MapSource(recipe(Numbers(), collate=list, num_workers=2, prefetch=2), CPU, epochs=10**6)


def of_stream(rank: int) -> Source:
    return StreamSource(recipe(Signed(SIZE), collate=list, num_workers=2, prefetch=2), CPU)


class Fixed:
    """The sources of up to three workers, for all examples, and the processes that ever read for them."""

    def __init__(self, make: Callable[[int], Source]) -> None:
        self.sources = [make(rank) for rank in range(3)]
        self.pids: set[int] = set()

    def samples(self, batch: list[tuple[int, By]]) -> list[int]:
        self.pids.update(by.pid for _, by in batch)
        return [index for index, _ in batch]


@pytest.fixture(params=[of_map, of_stream], ids=["map", "stream"])
def fixed(request: pytest.FixtureRequest) -> Iterator[Fixed]:
    made = Fixed(request.param)
    yield made
    for source in made.sources:
        source.close()


@given(seed=st.integers(0, 2**40), history=histories, last=splits)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_history_uses_each_sample_once_and_no_process_is_started_anew(
    fixed: Fixed, seed: int, history: list[tuple[str, Any]], last: list[int]
) -> None:
    fleet = Fleet(fixed.sources.__getitem__, fixed.samples, seed)
    fleet.play([*history, ("plan", last)])
    fleet.check_exactly_once(SIZE)
    assert len(fixed.pids) <= 3 * 2
    assert os.getpid() not in fixed.pids
