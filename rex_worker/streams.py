"""Streams: datasets that can only be read from their beginning, each sample exactly once all the same.

A stream split between workers by its own means (every n-th item) loses or doubles samples as soon as their number
changes. Here every worker reads the same stream, takes its share of each step by the items' numbers, and passes over
the others'. That costs reading, but the position stays (seed, epoch, offset), so any plan, group and resume fits.

How long a stream is shows only at its end. So a step is laid out when one item more than it needs was read, or the
end: then every worker knows its size, and whether it is the epoch's last. The samples from the step at hand on are
kept, the whole group's, so that another plan or a lost peer costs no reading again.

All hangs on every worker reading the same. Randomness is seeded before each item, and each step's layout carries a
checksum of its first sample, which the workers compare when they vote.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NoReturn

import numpy as np
import torch

from rex_worker.errors import Desynchronised, UsageError
from rex_worker.loader import to_device
from rex_worker.prefetch import Guess, Processes
from rex_worker.recipe import Collate, Recipe
from rex_worker.sampler import Layout, MicroBatch, Outlook
from rex_worker.seeding import own_generators, seed_generators, seed_of

_OPENING = -1
"""Stands for the item's number while the stream is being opened."""


@dataclass(frozen=True)
class Task:
    """One pass of a step of the stream."""

    outlook: Outlook
    number: int
    keep_from: int
    """Items of this epoch before this one are used."""


Reading = tuple[Layout, Any]
"""The layout of a step, and the batch of one of its passes (None when a short step has no such pass)."""


class StreamSource:
    """A stream: samples are counted as they come."""

    size = 0

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self._device = device
        self._reader = StreamReader(recipe.dataset, recipe.collate)
        # A second process would read the same stream once more, and no faster.
        self._processes = Processes(self._reader, recipe, 1, device) if recipe.num_workers > 0 else None
        self._outlook: Outlook | None = None
        self._first: Reading | None = None

    def lay_out(self, outlook: Outlook) -> Layout:
        """Lay the next step out, once enough of the stream was read."""
        self._outlook = outlook
        self._first = self._read(outlook, 0)
        return self._first[0]

    def fetch(self, number: int) -> Any:
        """Return a pass's batch."""
        first, self._first = self._first, None
        if first is None or number > 0:
            if self._outlook is None:
                raise RuntimeError("no step was laid out")
            first = self._read(self._outlook, number)
        return to_device(first[1], self._device)

    def _read(self, outlook: Outlook, number: int) -> Reading:
        offset = outlook.position.offset
        if self._processes is None:
            with own_generators():
                reading = self._reader.read(Task(outlook, number, offset), lambda: True)
        else:
            reading = self._processes.take(_key(outlook, number), lambda: self._onwards(outlook, number))
        if reading is None:
            raise RuntimeError("a batch that is wanted was passed over")
        return reading

    def _onwards(self, outlook: Outlook, number: int) -> Iterator[Guess]:
        """Guess that the epoch goes on; at its end another guess is needed anyway."""
        while True:
            for at in range(number, len(_whole(outlook))):
                present = outlook if self._outlook is None else self._outlook
                yield _key(outlook, at), Task(outlook, at, present.position.offset)
            step = outlook.global_batch
            outlook = replace(outlook, position=outlook.position.advance(step, ends_epoch=False))
            number = 0

    def close(self) -> None:
        """End the reading process."""
        if self._processes is not None:
            self._processes.close()


def _key(outlook: Outlook, number: int) -> Hashable:
    """What the batch of a pass hangs on: a smaller ceiling may well leave the passes as they are."""
    return outlook.position, outlook.local_batches, _whole(outlook), number


def _whole(outlook: Outlook) -> tuple[MicroBatch, ...]:
    """This worker's passes of a step that is not short."""
    return outlook.lay_out(outlook.global_batch + 1).passes


class StreamReader:
    """Reads the stream on, and keeps the items from the step at hand on."""

    def __init__(self, dataset: Any, collate: Collate) -> None:
        self.dataset = dataset
        self._collate = collate
        self._opened: tuple[int, int] | None = None
        """Seed and epoch."""
        self._items: Iterator[Any] = iter(())
        self._kept: deque[Any] = deque()
        self._read = 0
        """Items read of this epoch; those kept are the last of them."""
        self._ended = False

    def read(self, task: Task, wanted: Callable[[], bool]) -> Reading | None:
        """Return a step's layout and one of its batches; None when it is no longer wanted.

        Raises:
            UsageError: The stream is empty.
            Desynchronised: The stream ends before the place that was reached already.
        """
        outlook, position = task.outlook, task.outlook.position
        kept_from = self._read - len(self._kept)
        if self._opened != (position.seed, position.epoch) or position.offset < kept_from:
            self._open(position.seed, position.epoch)
        end = position.offset + outlook.global_batch + 1
        while self._read < end and not self._ended:
            if not wanted():
                return None
            self._read_one(keep=self._read >= task.keep_from)
        while self._kept and self._read - len(self._kept) < task.keep_from:
            self._kept.popleft()
        left = min(self._read, end) - position.offset
        if left < 1:
            if position.offset > task.keep_from:
                return None  # a guess beyond the end
            self._complain(position.epoch, position.offset)
        layout = outlook.lay_out(left, checksum(self._items_at(position.offset, position.offset + 1)[0]))
        if task.number >= len(layout.passes):
            return layout, None
        part: MicroBatch = layout.passes[task.number]
        items = self._items_at(part.start, part.stop)
        if part.filler:
            items = items * len(part)
        seed_generators(seed_of(position.seed, position.epoch, part.start, part.stop))
        return layout, self._collate(items)

    def _open(self, seed: int, epoch: int) -> None:
        seed_generators(seed_of(seed, epoch, _OPENING))
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)
        self._items = iter(self.dataset)
        self._kept.clear()
        self._opened, self._read, self._ended = (seed, epoch), 0, False

    def _read_one(self, keep: bool) -> None:
        seed, epoch = self._opened or (0, 0)
        seed_generators(seed_of(seed, epoch, self._read))
        try:
            item = next(self._items)
        except StopIteration:
            self._ended = True
            return
        self._read += 1
        if keep:
            self._kept.append(item)

    def _items_at(self, start: int, stop: int) -> list[Any]:
        first = self._read - len(self._kept)
        return list(islice(self._kept, start - first, stop - first))

    def _complain(self, epoch: int, offset: int) -> NoReturn:
        if self._read == 0:
            raise UsageError(f"session.loader: the stream gave no sample in epoch {epoch}")
        raise Desynchronised(
            f"the stream ended after {self._read} samples in epoch {epoch}, but {offset} of it were used: it must"
            " give the same samples each time it is read"
        )


def checksum(sample: Any) -> int:
    """Return a checksum below 2**32 of the plain data and tensors in ``sample``; what else it holds is passed over."""
    return _extend(0, sample)


def _extend(crc: int, value: Any) -> int:
    if isinstance(value, torch.Tensor):
        bits = value.detach().cpu().flatten().view(torch.uint8).numpy().tobytes()
        return zlib.crc32(bits, _named(crc, f"tensor {tuple(value.shape)}"))
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return zlib.crc32(value.tobytes(), _named(crc, f"array {value.shape}"))
    if isinstance(value, bytes):
        return zlib.crc32(value, _named(crc, f"bytes {len(value)}"))
    if value is None or isinstance(value, str | bool | int | float | np.generic):
        return _named(crc, repr(value))
    if isinstance(value, dict):
        return _extend(_named(crc, "dict"), [part for item in value.items() for part in item])
    if isinstance(value, list | tuple):
        crc = _named(crc, f"list {len(value)}")
        for part in value:
            crc = _extend(crc, part)
        return crc
    return _named(crc, type(value).__qualname__)


def _named(crc: int, text: str) -> int:
    return zlib.crc32(f"{text};".encode(errors="surrogatepass"), crc)
