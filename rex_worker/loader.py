"""Batches of the plan's size, for as long as the epoch lasts.

Iterating it looks like torch's ``DataLoader``. What comes out are micro-batches: the plan decides how many samples,
the sampler which ones, and both may change at each step. Samples come from a source: a map-style dataset (here) or a
stream (``rex_worker.streams``), read in the training process or ahead of time in processes of their own
(``rex_worker.prefetch``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch.utils.data import Subset, TensorDataset, default_collate

from rex_worker.prefetch import Guess, Processes
from rex_worker.recipe import Recipe
from rex_worker.sampler import EpochOrder, Indices, Layout, Outlook
from rex_worker.seeding import seed_generators, seed_of


class Source(Protocol):
    """Where a worker's batches come from, step by step."""

    size: int
    """Samples of an epoch; 0: not known."""

    def lay_out(self, outlook: Outlook) -> Layout:
        """Say what the next step holds; may wait for data."""

    def fetch(self, number: int) -> Any:
        """Return the batch of a pass of the step laid out last, on the worker's device. In order, each once."""

    def close(self) -> None:
        """End what reads."""


class ElasticLoader:
    """Yields collated micro-batches of a dataset. Made by ``Session.loader``."""

    def __init__(self, batches: Callable[[], Iterator[Any]], recipe: Recipe, initial_batch: int) -> None:
        self.dataset = recipe.dataset
        self._batches = batches
        self._length, self._initial_batch = recipe.length, initial_batch

    def __len__(self) -> int:
        """Updates of an epoch with the initial batch: what a schedule is set up for. Plans may want more or fewer.

        Raises ``TypeError`` for a stream that does not tell its length.
        """
        if not self._length:
            raise TypeError("the dataset is a stream that does not tell how long it is")
        return -(-self._length // self._initial_batch)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over what is left of the epoch; a step that the group could not complete is yielded again."""
        return self._batches()


class MapSource:
    """A map-style dataset: samples are read by their index."""

    def __init__(self, recipe: Recipe, device: torch.device, epochs: int) -> None:
        self.size = len(recipe.dataset)
        self._device = device
        self._epochs = epochs
        self._order = EpochOrder(self.size, shuffle=recipe.shuffle)
        self._reader = MapReader(recipe)
        self._processes = (
            Processes(self._reader, recipe, recipe.num_workers, device) if recipe.num_workers > 0 else None
        )
        self._outlook: Outlook | None = None
        self._layout: Layout | None = None

    def lay_out(self, outlook: Outlook) -> Layout:
        """Lay the next step out; waits for nothing."""
        self._outlook = outlook
        self._layout = outlook.lay_out(self.size - outlook.position.offset)
        return self._layout

    def fetch(self, number: int) -> Any:
        """Return a pass's batch."""
        if self._outlook is None or self._layout is None:
            raise RuntimeError("no step was laid out")
        seed, part = self._outlook.position.seed, self._layout.passes[number]
        if self._processes is None:
            batch = self._reader.in_this_process(self._order.rows(seed, part))
        else:
            batch = self._processes.take((seed, part), lambda: self._onwards(number))
        return to_device(batch, self._device)

    def _onwards(self, number: int) -> Iterator[Guess]:
        """Guess which passes come: the rest of this step, then what follows if nothing changes."""
        outlook, layout = self._outlook, self._layout
        seed = 0 if outlook is None else outlook.position.seed
        while outlook is not None and layout is not None and outlook.position.epoch < self._epochs:
            for part in layout.passes[number:]:
                yield (seed, part), (seed, part.epoch, self._order.rows(seed, part))
            outlook, number = outlook.after(layout), 0
            layout = outlook.lay_out(self.size - outlook.position.offset)

    def close(self) -> None:
        """End the processes."""
        if self._processes is not None:
            self._processes.close()


class MapReader:
    """Reads samples by their index and collates them."""

    def __init__(self, recipe: Recipe) -> None:
        self.dataset = recipe.dataset
        self._collate = recipe.collate
        self._at_once = reads_at_once(self.dataset)

    def in_this_process(self, rows: Indices) -> Any:
        """Read the samples ``rows``; what they draw at random comes from the script's own generators."""
        if isinstance(self.dataset, TensorDataset) and self._collate is default_collate:
            chosen = torch.from_numpy(rows)
            return [tensor[chosen] for tensor in self.dataset.tensors]
        if self._at_once:
            return self._collate(self.dataset.__getitems__(rows.tolist()))
        return self._collate([self.dataset[row] for row in rows.tolist()])

    def read(self, task: tuple[int, int, Indices], wanted: Callable[[], bool]) -> Any:
        """Read the samples of ``task``, (seed, epoch, rows), each with randomness of its own; in a reading process."""
        seed, epoch, rows = task
        if self._at_once:
            seed_generators(seed_of(seed, epoch, int(rows[0])))
            return self._collate(self.dataset.__getitems__(rows.tolist()))
        samples = []
        for row in rows.tolist():
            if not wanted():
                return None
            seed_generators(seed_of(seed, epoch, row))
            samples.append(self.dataset[row])
        return self._collate(samples)


def reads_at_once(dataset: Any) -> bool:
    """Whether a dataset has a way of its own to read several samples; a ``Subset`` says so of any."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return hasattr(dataset, "__getitems__")


def to_device(batch: Any, device: torch.device) -> Any:
    """Move the tensors of a collated batch to ``device``; a CPU batch stays as it is."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
