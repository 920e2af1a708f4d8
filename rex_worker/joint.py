"""A checkpoint that all workers write, because each has a shard of the state.

Each copies its shards at the same boundary and writes them to the same folder aside, in its own time. Whether all are
done they ask each other at the boundaries that follow, with a few bytes; the thread that writes never speaks to the
group, whose collectives belong to the training. Then rank 0 puts the whole in place. When the group is lost before
that, nothing is.
"""

from __future__ import annotations

import json
import logging

import torch

from rex_worker.checkpoint import CheckpointFolder
from rex_worker.errors import first_line
from rex_worker.group import Group
from rex_worker.replica import Replica
from rex_worker.staging import Stager, gather_texts

log = logging.getLogger("rex.checkpoint")


class JointSave:
    """One checkpoint, from the copy to the commit. Every rank of ``group`` makes one at the same boundary."""

    def __init__(self, folder: CheckpointFolder, stager: Stager, replica: Replica, group: Group) -> None:
        """Copy this rank's shards. Raises ``GroupLost``."""
        self._folder = folder
        self.generation = group.generation
        self.taken = stager.take(replica.state(), replica.step, replica.progress.samples, group)
        self._told: str | None = None
        self._asked = replica.step
        self._given_up = False

    def write(self) -> None:
        """Write this rank's shards; what came of it is told in ``parts``. Never raises."""
        told: dict[str, str] = {}
        try:
            told["part"] = self._folder.write_part(self.taken)
        except Exception as error:
            log.error("this worker's part of the checkpoint of step %d failed: %s", self.taken.step, first_line(error))
            told["error"] = f"rank {self.taken.rank}: {type(error).__name__}: {first_line(error)}"
        self._told = json.dumps(told)
        if self._given_up:
            self._folder.discard(self.taken)

    def is_written(self, group: Group, step: int) -> bool:
        """Whether all ranks are done with it; all ranks ask, once at the boundary after ``step``.

        Raises:
            GroupLost: A rank is gone.
        """
        if step == self._asked:
            return False
        self._asked = step
        return bool(group.gathered(torch.tensor([int(self._told is not None)])).all())

    def parts(self, group: Group) -> list[str]:
        """What the ranks have written, in rank order; all ranks ask, once they are done. Raises ``GroupLost``."""
        return gather_texts(group, self._told or "{}")

    def commit(self, parts: list[str], final: bool) -> None:
        """Put it in place: rank 0 does. Raises ``OSError``, on all ranks alike when one could not write its part."""
        told = [json.loads(part) for part in parts]
        errors = [one["error"] for one in told if "error" in one]
        if errors:
            if self.taken.rank == 0:
                self._folder.discard(self.taken)
            raise OSError("; ".join(errors))
        if self.taken.rank == 0:
            self._folder.commit(self.taken, [one["part"] for one in told], final)

    def give_up(self) -> None:
        """The group is lost, and this checkpoint with it."""
        self._given_up = True
        if self._told is not None:
            self._folder.discard(self.taken)
