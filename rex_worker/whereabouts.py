"""Where a worker stands: what a script may ask its session at any time.

All of it is read-only and cheap, and some of it may be another at the next step: workers come and go, plans change.
"""

from __future__ import annotations

import math

from rex_worker.environment import Environment
from rex_worker.errors import UsageError
from rex_worker.link import Link
from rex_worker.participation import Participation
from rex_worker.protocol import Plan
from rex_worker.recipe import Recipe
from rex_worker.replica import Replica
from rex_worker.training import Training


class Whereabouts:
    """The questions that a session answers."""

    _environment: Environment
    _link: Link
    _participation: Participation
    _launched: int
    _recipe: Recipe | None
    _replica: Replica | None
    _training: Training | None
    _total_epochs: int

    @property
    def is_main(self) -> bool:
        """Whether this is the group's rank 0; in a job False until the first group has formed."""
        term = self._participation.last
        return self._link.alone if term is None else term.group.rank == 0

    @property
    def rank(self) -> int:
        """This worker's place in its present group, or in the last one."""
        term = self._participation.last
        return 0 if term is None else term.group.rank

    @property
    def world_size(self) -> int:
        """Number of workers in the present group, or in the last one."""
        term = self._participation.last
        return 1 if term is None else term.group.size

    @property
    def plan(self) -> Plan | None:
        """The plan that the group runs under; None before the first group."""
        term = self._participation.last
        return None if term is None else term.plan

    @property
    def step(self) -> int:
        """Optimiser steps applied."""
        return 0 if self._replica is None else self._replica.step

    @property
    def samples(self) -> int:
        """Samples applied by all workers together."""
        return 0 if self._replica is None else self._replica.progress.samples

    @property
    def initial_batch(self) -> int:
        """Global batch that the script's rate and schedule are meant for: the job's ``batch.initial``.

        Without an operator what the processes ask for together. Known once ``loader`` was called.
        """
        if self.plan is not None and self.plan.initial_batch:
            return self.plan.initial_batch
        if self._environment.batch_initial:
            return self._environment.batch_initial
        if self._recipe is None:
            raise UsageError("session.initial_batch: call session.loader(dataset) before")
        return self._recipe.batch_size * self._launched

    @property
    def progress(self) -> float:
        """Share of the run that is done, 0 to 1: by samples, so that it grows evenly whatever the batches.

        Of a stream that does not tell its length the epochs that are done count.
        """
        if self._replica is None or self._recipe is None:
            return 0.0
        position, length = self._replica.progress.position, self._recipe.length
        return min(1.0, (position.epoch + (position.offset / length if length else 0.0)) / self._total_epochs)

    @property
    def learning_rate_factor(self) -> float:
        """What the base learning rate was multiplied with at the last update; 1 before the first."""
        return 1.0 if self._training is None else self._training.rate_factor

    @property
    def loss(self) -> float:
        """Mean loss over the last step's global batch."""
        return math.nan if self._training is None else self._training.loss

    @property
    def batch_weight(self) -> float:
        """What the batch at hand counts in the mean over the step's global batch; 0 for one that only fills in.

        A worker without a share in an epoch's short last step is given such a batch. A script that keeps its own
        averages over batches weighs with this.
        """
        return 0.0 if self._training is None else self._training.batch_weight

    @property
    def epoch(self) -> int:
        """The epoch that the next step belongs to; one more than the loop's once the loop's last step is applied."""
        return 0 if self._replica is None else self._replica.progress.position.epoch

    @property
    def gradients_ready(self) -> bool:
        """Whether the averaged gradients of a whole step are there: from its last ``backward`` to the update."""
        return self._training is not None and self._training.gradients_ready
