"""What ``session.loader`` was given, as one settled description.

A script has either a dataset with some settings, or a torch ``DataLoader`` that it used so far. Which samples make a
batch, and in which order, is REX's to say (that is what makes batches elastic and keeps each sample's count at one),
so of a ``DataLoader`` everything else is taken over, and one that insists on an order of its own is refused in words.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from rex_worker.errors import UsageError

log = logging.getLogger("rex")

Collate = Callable[[list[Any]], Any]

DEFAULT_BATCH = 32
DEFAULT_PREFETCH = 2
MAX_PROCESSES = 256


@dataclass(frozen=True)
class Recipe:
    """A dataset, and how its batches are made."""

    dataset: Any
    batch_size: int = DEFAULT_BATCH
    collate: Collate = default_collate
    shuffle: bool = True
    num_workers: int = 0
    """Processes that read the data; 0: the training process reads it."""
    prefetch: int = DEFAULT_PREFETCH
    """Micro-batches that each process reads ahead."""
    pin_memory: bool = True
    """Let read batches lie in pinned memory, if there is a CUDA device to copy them to."""
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    timeout: float = 0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("batch_size", 1, None),
            ("num_workers", 0, MAX_PROCESSES),
            ("prefetch", 1, None),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or value < low or (high is not None and value > high):
                bounds = f"at least {low}" if high is None else f"from {low} to {high}"
                raise UsageError(f"session.loader: {name} is {value!r}; it must be {bounds}")
        if is_stream(self.dataset):
            if not hasattr(self.dataset, "__iter__"):
                raise UsageError(
                    f"session.loader cannot read a {type(self.dataset).__name__}: give it a dataset with __len__ and"
                    " __getitem__, a stream with __iter__, or a torch DataLoader"
                )
            if hasattr(self.dataset, "__next__"):
                raise UsageError(
                    "session.loader: this iterator can be read only once, but each epoch, and a worker that joins,"
                    " reads from the beginning; give an IterableDataset, or an object whose __iter__ starts anew"
                )
        else:
            checked_size(self.dataset)

    @property
    def streams(self) -> bool:
        """Whether the dataset is a stream."""
        return is_stream(self.dataset)

    @property
    def length(self) -> int:
        """Samples of an epoch, as far as the dataset says; 0: not known."""
        try:
            return len(self.dataset)
        except TypeError:
            return 0


def recipe(dataset: Any, **given: Any) -> Recipe:
    """Settle the settings: those ``given`` (None: not given), else those of a ``DataLoader``, else the defaults.

    Raises:
        UsageError: Something was given that cannot be honoured.
    """
    settings: dict[str, Any] = {}
    if isinstance(dataset, DataLoader):
        settings = _of_loader(dataset)
        dataset = dataset.dataset
    settings |= {name: value for name, value in given.items() if value is not None}
    if is_stream(dataset) and settings.get("shuffle"):
        raise UsageError("session.loader: a stream is read in its own order; shuffle inside the dataset")
    unknown = settings.keys() - {field.name for field in fields(Recipe)}
    if unknown:
        raise TypeError(f"unknown settings: {sorted(unknown)}")
    return Recipe(dataset, **settings)


def is_stream(dataset: Any) -> bool:
    """Whether a dataset can only be read from its beginning on."""
    return isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"))


def checked_size(dataset: Any) -> int:
    """Number of samples. Raises ``UsageError`` for what cannot be sampled by index."""
    if is_stream(dataset):
        raise UsageError(
            f"a map-style dataset (with __len__ and __getitem__) is needed here, not {type(dataset).__name__}"
        )
    size = len(dataset)
    if size < 1:
        raise UsageError("session.loader: the dataset is empty")
    return size


def _of_loader(loader: DataLoader[Any]) -> dict[str, Any]:
    """What can be taken over of a ``DataLoader``."""
    batches: Any = loader.batch_sampler
    size, shuffle = loader.batch_size, None
    if loader.batch_size is None and batches is None:
        raise UsageError("session.loader: the DataLoader has batch_size=None; give it one, which REX then plans")
    if not is_stream(loader.dataset):
        sampler: Any = loader.sampler
        if loader.batch_size is None:
            if type(batches) is not BatchSampler:
                raise _owned("batch_sampler", batches)
            sampler, size = batches.sampler, batches.batch_size
        shuffle = _shuffles(sampler)
    if loader.drop_last or getattr(batches, "drop_last", False):
        log.info("drop_last is not used: the last step of an epoch is short, and weighs what it holds")
    settings = {
        "batch_size": size,
        "collate": loader.collate_fn,
        "shuffle": shuffle,
        "num_workers": loader.num_workers,
        "prefetch": loader.prefetch_factor,
        "pin_memory": loader.pin_memory,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "timeout": loader.timeout,
    }
    return {name: value for name, value in settings.items() if value is not None}


def _shuffles(sampler: Any) -> bool:
    if type(sampler) is SequentialSampler:
        return False
    if type(sampler) is RandomSampler:
        if sampler.replacement or sampler.num_samples != len(sampler.data_source):
            raise UsageError(
                "session.loader: the DataLoader's RandomSampler draws with replacement or another number of samples"
                " than the dataset has; REX uses each sample exactly once in an epoch"
            )
        return True
    raise _owned("sampler", sampler)


def _owned(what: str, thing: Any) -> UsageError:
    return UsageError(
        f"session.loader: the DataLoader has a {what} of its own ({type(thing).__name__}), which cannot be honoured:"
        " REX decides which worker takes which samples, at every step anew; leave it away (shuffle=True or False is"
        " honoured), and put a choice of samples into the dataset"
    )
