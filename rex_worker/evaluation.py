"""Judge a held-out set together, with a result that does not depend on how many workers there are.

Samplers that pad to equal shares count some samples twice, and the score moves with the world size. Here the set is
cut into chunks whose bounds hang on nothing but ``batch_size``; each is judged once, by whoever the plan's
proportions name. The figures are summed exactly (``rex_worker.exact``), so in which order and by whom does not
matter: the totals are the same to the last digit for any workers and shares, of counts and of losses, as long as a
chunk's own figures are (the same model on the same kind of device).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from rex_worker.errors import GroupLost, UsageError
from rex_worker.exact import MAX_PARTS, ExactSum
from rex_worker.group import Group
from rex_worker.loader import MapReader, to_device
from rex_worker.participation import Participation
from rex_worker.prefetch import Guess, Processes
from rex_worker.recipe import Recipe
from rex_worker.replica import Replica
from rex_worker.sampler import split_in_proportion

log = logging.getLogger("rex")

Judge = Callable[[Any], Sequence[float]]

_NO_EPOCH = -1
"""Seeds what a held-out sample draws at random: the same in each evaluation."""


class SharedEvaluation:
    """Shares evaluations out over the group that trains."""

    def __init__(self, participation: Participation, replica: Replica, device: torch.device) -> None:
        self._participation = participation
        self._replica = replica
        self._device = device
        self._key = (0, 0)
        self._chunks: Chunks | None = None

    def totals(self, recipe: Recipe, judge: Judge) -> list[float]:
        """Return the sums of ``judge``'s figures over all samples of a dataset; every worker of the group calls this.

        When the group is lost meanwhile, or has gone on to another epoch, this worker judges everything by itself; if
        the model is sharded, it cannot, and the sums are NaN.
        """
        term, step = self._participation.term, self._replica.step
        self._key = (step, self._key[1] + 1 if self._key[0] == step else 1)
        chunks = self._prepared(recipe)
        if term is None or self._replica.overtaken:
            return self._alone(chunks, judge)
        parts = split_in_proportion(chunks.count, term.local_batches())
        start = sum(parts[: term.group.rank])
        mine = measure(chunks.batches(start, start + parts[term.group.rank]), judge)
        if self._replica.together:
            for _ in range(max(parts) - parts[term.group.rank]):
                measure(chunks.batches(0, 1), judge)
        try:
            term.group.gate("evaluation-{}-{}".format(*self._key))
            return results(together(term.group, mine))
        except GroupLost as error:
            self._participation.lose(error, step)
            return self._alone(chunks, judge)

    def _alone(self, chunks: Chunks, judge: Judge) -> list[float]:
        if not self._replica.together:
            return results(measure(chunks.batches(0, chunks.count), judge))
        log.warning("session.totals: a peer was lost, and no worker can judge alone what is sharded over all")
        return [math.nan for _ in measure(chunks.batches(0, 1), judge)]

    def _prepared(self, recipe: Recipe) -> Chunks:
        """The reader of the dataset; that of the last evaluation, with its processes, if it was of the same one."""
        if self._chunks is None or not self._chunks.serves(recipe):
            self.close()
            self._chunks = Chunks(recipe, self._device)
        return self._chunks

    def close(self) -> None:
        """End the reading processes, if there are any."""
        if self._chunks is not None:
            self._chunks.close()


class Chunks:
    """A dataset in its own order, cut into batches of one size; the last may be smaller."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self._recipe = recipe
        self._device = device
        self._size = len(recipe.dataset)
        self.count = -(-self._size // recipe.batch_size)
        self._reader = MapReader(recipe)
        self._processes = (
            Processes(self._reader, recipe, recipe.num_workers, device) if recipe.num_workers > 0 else None
        )

    def serves(self, recipe: Recipe) -> bool:
        """Whether this is what ``recipe`` describes."""
        mine = self._recipe
        same = mine.dataset is recipe.dataset and mine.collate is recipe.collate and self._size == len(recipe.dataset)
        return same and (mine.batch_size, mine.num_workers) == (recipe.batch_size, recipe.num_workers)

    def batches(self, start: int, stop: int) -> Iterator[Any]:
        """Yield the chunks ``start`` to ``stop``, collated, on the device."""
        for number in range(start, stop):
            if self._processes is None:
                batch = self._reader.in_this_process(self._rows(number))
            else:
                batch = self._processes.take(number, lambda at=number: self._onwards(at, stop))  # type: ignore[misc]
            yield to_device(batch, self._device)

    def _onwards(self, start: int, stop: int) -> Iterator[Guess]:
        for number in range(start, stop):
            yield number, (0, _NO_EPOCH, self._rows(number))

    def _rows(self, number: int) -> Any:
        first = number * self._recipe.batch_size
        return np.arange(first, min(first + self._recipe.batch_size, self._size))

    def close(self) -> None:
        """End the processes."""
        if self._processes is not None:
            self._processes.close()


@torch.no_grad()
def measure(batches: Iterator[Any], judge: Judge) -> list[ExactSum]:
    """Sum the figures over ``batches``: a sum for each figure, or none when there are no batches."""
    sums: list[ExactSum] = []
    for batch in batches:
        figures = [float(figure) for figure in judge(batch)]
        sums = sums or [ExactSum() for _ in figures]
        if len(figures) != len(sums):
            raise UsageError(f"session.totals: judge returned {len(sums)} figures for a batch, then {len(figures)}")
        for total, figure in zip(sums, figures, strict=True):
            total.add(figure)
    return sums


def together(group: Group, mine: list[ExactSum]) -> list[ExactSum]:
    """Add up the sums of all workers of a group."""
    width = int(group.gathered(torch.tensor([len(mine)])).max())
    parts = torch.zeros(width, MAX_PARTS, dtype=torch.float64)
    for row, total in zip(parts, mine, strict=False):
        found = total.parts()
        row[: len(found)] = torch.tensor(found, dtype=torch.float64)
    sums = [ExactSum() for _ in range(width)]
    for worker in group.gathered(parts.flatten()).view(group.size, width, MAX_PARTS):
        for total, row in zip(sums, worker.tolist(), strict=True):
            for part in row:
                total.add(part)
    return sums


def results(sums: list[ExactSum]) -> list[float]:
    """The sums as plain numbers."""
    return [total.value() for total in sums]
