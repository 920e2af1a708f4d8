"""Promise 2 for streams that the training process reads: exactly once through any history, the same on all workers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset

from rex_worker.recipe import recipe
from rex_worker.sampler import Outlook, Position
from rex_worker.streams import StreamSource
from tests.worker.fleet import Fleet, histories, splits

CPU = torch.device("cpu")


class Shuffled(IterableDataset[int]):
    """Whole numbers in an order that is drawn anew, from the global generator, each time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[int]:
        buffer: list[int] = []
        for number in range(self.size):
            buffer.append(number)
            if len(buffer) > 7:
                yield buffer.pop(random.randrange(len(buffer)))
        while buffer:
            yield buffer.pop(random.randrange(len(buffer)))


def source(dataset: Any) -> StreamSource:
    return StreamSource(recipe(dataset, collate=list), CPU)


@given(size=st.integers(1, 120), seed=st.integers(0, 2**40), history=histories, last=splits)
@settings(max_examples=100, deadline=None)
def test_any_history_of_resizes_losses_and_resumes_uses_each_item_once(
    size: int, seed: int, history: list[tuple[str, Any]], last: list[int]
) -> None:
    fleet = Fleet(lambda rank: source(Shuffled(size)), list, seed)
    fleet.play([*history, ("plan", last)])
    fleet.check_exactly_once(size)


@pytest.mark.parametrize(("before", "after"), [(4, 3), (3, 4)])
def test_c_104_a_stream_and_a_resize_after_twelve_steps(before: int, after: int) -> None:
    fleet = Fleet(lambda rank: source(Shuffled(1000)), list, seed=1)
    fleet.play([("plan", [10] * before), ("steps", 12), ("plan", [10] * after)])
    fleet.check_exactly_once(1000)


@pytest.mark.parametrize("world", [1, 3, 8])
def test_c_120_a_streams_state_of_four_serves_any_world_size(world: int) -> None:
    fleet = Fleet(lambda rank: source(Shuffled(503)), list, seed=3)
    fleet.play([("plan", [10, 9, 8, 7]), ("steps", 7), ("keep", 0), ("all die", 0), ("plan", [6] * world)])
    fleet.check_exactly_once(503)


@pytest.mark.parametrize("stop_at", [4, 5, 6])
def test_c_106_a_stream_resumed_around_the_epoch_boundary_keeps_the_number_of_steps(stop_at: int) -> None:
    fleet = Fleet(lambda rank: source(Shuffled(50)), list, seed=4)
    fleet.play([("plan", [10]), ("steps", stop_at), ("keep", 0), ("all die", 0)])
    while fleet.position.epoch < 3:
        fleet.step()
    assert fleet.steps == 15


def test_c_109_workers_agree_on_a_streams_order_and_epochs_differ() -> None:
    fleet = Fleet(lambda rank: source(Shuffled(200)), list, seed=7)
    fleet.play([("plan", [200]), ("steps", 4)])
    epochs = [tuple(sample for epoch, sample in fleet.used if epoch == number) for number in range(4)]
    assert len(set(epochs)) == 4
    newcomer = source(Shuffled(200))
    layout = newcomer.lay_out(Outlook(Position(7, 3, 40), (5, 7), rank=1))
    assert newcomer.fetch(0) == list(epochs[3][45:52]) and not layout.ends_epoch


def test_all_workers_learn_the_end_at_the_same_step_wherever_it_falls() -> None:
    for size in range(1, 26):
        fleet = Fleet(lambda rank, size=size: source(Shuffled(size)), list, seed=0)  # type: ignore[misc]
        fleet.play([("plan", [5, 3])])
        while fleet.position.epoch == 0:
            fleet.step()
        assert fleet.steps == -(-size // 8)


def test_another_plan_or_a_lost_step_reads_nothing_again() -> None:
    dataset = Shuffled(500)
    fleet = Fleet(lambda rank: source(dataset), list, seed=0)
    fleet.play(
        [("plan", [9]), ("steps", 3), ("plan", [4]), ("lost step", 1), ("steps", 2), ("plan", [30]), ("steps", 2)]
    )
    assert dataset.epochs == [0], "the stream was opened once"


def test_no_more_is_kept_than_the_step_and_one_item() -> None:
    stream = source(Shuffled(500))
    for offset in range(0, 400, 20):
        stream.lay_out(Outlook(Position(0, 0, offset), (12, 8), rank=0, accumulation=3))
        for number in range(3):
            stream.fetch(number)
        assert len(stream._reader._kept) == 21
