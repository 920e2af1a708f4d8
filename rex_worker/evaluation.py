"""Judge a held-out set together, with a result that does not depend on how many workers there are.

Samplers that pad to equal shares count some samples twice, and the score moves with the world size. Here each sample
is judged once, by whoever the plan's proportions name, and figures are summed; counts come out the same to the last
digit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rex_worker.errors import GroupLost
from rex_worker.loader import ElasticLoader
from rex_worker.participation import Participation
from rex_worker.replica import Replica
from rex_worker.sampler import split_in_proportion

Judge = Callable[[Any], Sequence[float]]


class SharedEvaluation:
    """Shares evaluations out over the group that trains."""

    def __init__(self, participation: Participation, replica: Replica) -> None:
        self._participation = participation
        self._replica = replica
        self._key = (0, 0)

    def totals(self, reader: ElasticLoader, judge: Judge, batch_size: int) -> list[float]:
        """Return the sums of ``judge``'s figures over all samples of ``reader``; every worker of the group calls this.

        When the group is lost meanwhile, or has gone on to another epoch, this worker judges everything by itself.
        """
        term, step = self._participation.term, self._replica.step
        self._key = (step, self._key[1] + 1 if self._key[0] == step else 1)
        if term is None or self._replica.overtaken:
            return measure(reader, judge, batch_size, 0, reader.size).tolist()
        parts = split_in_proportion(reader.size, term.local_batches())
        start = sum(parts[: term.group.rank])
        mine = measure(reader, judge, batch_size, start, start + parts[term.group.rank])
        try:
            term.group.gate("evaluation-{}-{}".format(*self._key))
            width = int(term.group.gathered(torch.tensor([mine.numel()])).max())
            sums = mine if mine.numel() else torch.zeros(width, dtype=torch.float64)
            return term.group.gathered(sums).sum(0).tolist()
        except GroupLost as error:
            self._participation.lose(error, step)
            return measure(reader, judge, batch_size, 0, reader.size).tolist()


@torch.no_grad()
def measure(reader: ElasticLoader, judge: Judge, batch_size: int, start: int, stop: int) -> Tensor:
    """Sum the figures over samples ``start`` to ``stop``: shape (figures,), or (0,) when there are no samples."""
    sums = torch.zeros(0, dtype=torch.float64)
    for first in range(start, stop, batch_size):
        batch = reader.fetch(np.arange(first, min(first + batch_size, stop)))
        figures = torch.tensor([float(figure) for figure in judge(batch)], dtype=torch.float64)
        sums = sums + figures if sums.numel() else figures
    return sums
