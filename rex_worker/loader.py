"""Batches of the plan's size, for as long as the epoch lasts.

Iterating it looks like torch's ``DataLoader``. What comes out are micro-batches: the plan decides how many samples,
the sampler which ones, and both may change at each step. So nothing is fetched beyond the step at hand; within it
samples can be fetched by several threads (``threads``), which suits datasets that read files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from rex_worker.errors import UsageError
from rex_worker.sampler import Indices

Fetch = Callable[[Indices], Any]


class ElasticLoader:
    """Yields collated micro-batches of a map-style dataset. Made by ``Session.loader``."""

    def __init__(
        self,
        batches: Callable[[Fetch], Iterator[Any]],
        dataset: Any,
        collate: Callable[[Sequence[Any]], Any] | None,
        threads: int,
        device: torch.device,
    ) -> None:
        self.dataset = dataset
        self.size = checked_size(dataset)
        self._batches = batches
        self._collate = collate or default_collate
        self._pool = ThreadPoolExecutor(threads, "rex-data") if threads > 0 else None
        self._device = device

    def __iter__(self) -> Iterator[Any]:
        """Iterate over what is left of the epoch; a step that the group could not complete is yielded again."""
        return self._batches(self.fetch)

    def fetch(self, indices: Indices) -> Any:
        """Read and collate the samples at ``indices``, on the worker's device."""
        if isinstance(self.dataset, TensorDataset) and self._collate is default_collate:
            chosen = torch.from_numpy(indices)
            return to_device([tensor[chosen] for tensor in self.dataset.tensors], self._device)
        rows: list[int] = indices.tolist()
        if self._pool is not None:
            samples = list(self._pool.map(self.dataset.__getitem__, rows))
        elif hasattr(self.dataset, "__getitems__"):
            samples = self.dataset.__getitems__(rows)
        else:
            samples = [self.dataset[row] for row in rows]
        return to_device(self._collate(samples), self._device)


def checked_size(dataset: Any) -> int:
    """Number of samples. Raises ``UsageError`` for what cannot be sampled by index."""
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise UsageError(
            f"session.loader needs a map-style dataset (with __len__ and __getitem__), not {type(dataset).__name__}:"
            " REX gives each worker samples by their index; give it the dataset, not a DataLoader or a stream"
        )
    size = len(dataset)
    if size < 1:
        raise UsageError("session.loader: the dataset is empty")
    return size


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
