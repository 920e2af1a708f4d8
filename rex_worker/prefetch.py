"""Reading ahead, across step boundaries, under the assumption that plan and group stay.

torch's ``DataLoader`` reads ahead of a fixed sampler. Here nobody knows for sure what the next step holds: a new
plan, a lost peer or a smaller memory ceiling changes it. So its processes are fed with guesses, in order, and each
guess carries a key. A batch is handed out only when its key is the one that is wanted; at the first one that is not,
everything read ahead is thrown away and guessing starts anew, with the same processes. Nothing counts as used until a
step was applied, so nothing is lost by it but the reading.

At most ``num_workers * prefetch`` micro-batches lie ready or are being read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset

from rex_worker.nursing import Birth
from rex_worker.recipe import Recipe

Guess = tuple[Hashable, Any]
"""A key and the task that it stands for."""


class Reader(Protocol):
    """Does tasks; travels to the reading processes, by fork or pickled."""

    @property
    def dataset(self) -> Any:
        """The script's dataset."""

    def read(self, task: Any, wanted: Callable[[], bool]) -> Any:
        """Do one task; what comes back when ``wanted()`` has become false meanwhile does not matter."""


class Processes:
    """Reading processes, kept for the life of the session.

    They start at once, before there is a group: what starting takes (a spawned one imports torch) then passes while the
    worker waits to be let in, and there is less to fork that they must not have.
    """

    def __init__(self, reader: Reader, recipe: Recipe, processes: int, device: torch.device) -> None:
        self._round = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._guesses: Iterator[Guess] = iter(())
        self._sent: deque[Hashable] = deque()
        self._loader: DataLoader[Any] = DataLoader(
            _Rounds(reader, self._round),
            batch_size=None,
            sampler=_Feed(self._next_task),
            collate_fn=_as_it_is,
            num_workers=processes,
            prefetch_factor=recipe.prefetch,
            persistent_workers=True,
            pin_memory=recipe.pin_memory and device.type == "cuda",
            timeout=recipe.timeout,
            worker_init_fn=Birth(recipe.worker_init_fn, recipe.multiprocessing_context),
            multiprocessing_context=recipe.multiprocessing_context,
            # Its own, or else torch draws from the script's generator at each restart.
            generator=torch.Generator().manual_seed(0),
        )
        self._iterator: Any = iter(self._loader)

    def take(self, key: Hashable, onwards: Callable[[], Iterator[Guess]]) -> Any:
        """Return what was read for ``key``.

        Args:
            key: What is wanted.
            onwards: Guesses what will be wanted from now on; the first is ``key``.

        Raises:
            Exception: What the dataset raised, with its traceback in the message.
            RuntimeError: A reading process is gone.
        """
        if not self._sent or self._sent[0] != key:
            self._restart(onwards())
        self._sent.popleft()
        try:
            return next(self._iterator)
        except OSError as error:
            if str(error).startswith("Caught "):  # torch's word for what the dataset raised
                raise
            # What a process has read is fetched from that process, which torch does not look after at this point.
            raise RuntimeError(f"DataLoader worker process exited unexpectedly ({type(error).__name__})") from error

    def _restart(self, guesses: Iterator[Guess]) -> None:
        self._round += 1  # what is still being read is given up at the next sample
        self._sent.clear()
        self._guesses = guesses
        self._iterator = iter(self._loader)

    def _next_task(self) -> Any:
        key, task = next(self._guesses)
        self._sent.append(key)
        return int(self._round), task

    def close(self) -> None:
        """End the processes."""
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            self._round += 1
            iterator._shutdown_workers()


class _Feed(Iterable[Any]):
    """The sampler of torch's ``DataLoader``: asks for the next task whenever a process may have one more."""

    def __init__(self, next_task: Callable[[], Any]) -> None:
        self._next_task = next_task

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                task = self._next_task()
            except StopIteration:
                return
            yield task


class _Rounds(Dataset[Any]):
    """In a reading process: does the tasks of the present round, and passes over those of earlier ones."""

    def __init__(self, reader: Reader, present: torch.Tensor) -> None:
        self.reader = reader
        self._present = present

    def __getitem__(self, entry: Any) -> Any:
        number, task = entry
        if number != int(self._present):
            return None
        return self.reader.read(task, lambda: number == int(self._present))


def _as_it_is(batch: Any) -> Any:
    return batch
