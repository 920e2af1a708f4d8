"""What ``session.loader`` takes, and in which words it refuses the rest."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from rex_worker.errors import UsageError
from rex_worker.recipe import recipe

DATA = TensorDataset(torch.arange(20))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(5)


class Counted(Stream):
    def __len__(self) -> int:
        return 5


def test_a_datasets_defaults() -> None:
    found = recipe(DATA)
    assert (found.batch_size, found.shuffle, found.num_workers, found.prefetch) == (32, True, 0, 2)
    assert found.collate is default_collate and found.length == 20 and not found.streams


def test_all_of_a_dataloader_but_the_choice_of_samples_is_taken_over() -> None:
    def initialise(number: int) -> None:
        """Nothing."""

    given: dict[str, Any] = {"num_workers": 2, "prefetch_factor": 5, "timeout": 7, "worker_init_fn": initialise}
    loader = DataLoader(DATA, batch_size=6, collate_fn=list, multiprocessing_context="spawn", **given)
    found = recipe(loader)
    assert found.dataset is DATA and found.collate is list and found.worker_init_fn is initialise
    assert (found.batch_size, found.num_workers, found.prefetch, found.timeout) == (6, 2, 5, 7)
    assert found.shuffle is False and found.multiprocessing_context is loader.multiprocessing_context


@pytest.mark.parametrize(
    ("options", "shuffle"),
    [
        ({"shuffle": True}, True),
        ({"shuffle": False}, False),
        ({"sampler": SequentialSampler(DATA)}, False),
        ({"batch_sampler": BatchSampler(RandomSampler(DATA), 9, False)}, True),
        ({"batch_sampler": BatchSampler(SequentialSampler(DATA), 9, True)}, False),
    ],
)
def test_the_order_that_a_dataloader_asks_for_is_honoured(options: dict[str, Any], shuffle: bool) -> None:
    found = recipe(DataLoader(DATA, **options))
    assert found.shuffle is shuffle
    assert found.batch_size == (9 if "batch_sampler" in options else 1)


def test_what_is_given_goes_before_the_dataloader() -> None:
    found = recipe(DataLoader(DATA, batch_size=6, shuffle=True), shuffle=False, batch_size=None, num_workers=1)
    assert (found.shuffle, found.batch_size, found.num_workers) == (False, 6, 1)


def test_that_nothing_is_dropped_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        recipe(DataLoader(DATA, batch_size=6, drop_last=True))
    assert "drop_last is not used: the last step of an epoch is short" in caplog.text


def test_streams() -> None:
    assert recipe(Stream()).streams and recipe(Stream()).length == 0
    assert recipe(Counted()).streams and recipe(Counted()).length == 5, "what it says of itself serves progress only"
    assert recipe(DataLoader(Stream(), batch_size=3)).batch_size == 3


class Mine(BatchSampler):
    pass


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (DataLoader(DATA, sampler=SubsetRandomSampler([1, 2])), r"a sampler of its own \(SubsetRandomSampler\)"),
        (DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 20, 20)), "WeightedRandomSampler"),
        (DataLoader(DATA, sampler=DistributedSampler(DATA, 2, 0)), "DistributedSampler.*leave it away"),
        (DataLoader(DATA, sampler=RandomSampler(DATA, replacement=True)), "exactly once in an epoch"),
        (DataLoader(DATA, sampler=RandomSampler(DATA, num_samples=5)), "another number of samples"),
        (
            DataLoader(DATA, batch_sampler=Mine(SequentialSampler(DATA), 2, False)),
            r"a batch_sampler of its own \(Mine\)",
        ),
        (DataLoader(DATA, batch_sampler=BatchSampler(SubsetRandomSampler([1]), 2, False)), "SubsetRandomSampler"),
        (DataLoader(DATA, batch_size=None), "batch_size=None"),
        ([], "the dataset is empty"),
        (iter([1]), "can be read only once"),
        (7, "cannot read a int"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(dataset: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        recipe(dataset)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"num_workers": -1}, "num_workers is -1; it must be from 0 to 256"),
        ({"num_workers": 2.5}, "num_workers is 2.5"),
        ({"prefetch": 0}, "prefetch is 0; it must be at least 1"),
    ],
)
def test_numbers_out_of_range_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        recipe(DATA, **options)


def test_a_stream_is_not_shuffled_by_us() -> None:
    with pytest.raises(UsageError, match="shuffle inside the dataset"):
        recipe(Stream(), shuffle=True)
