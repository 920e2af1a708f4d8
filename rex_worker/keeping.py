"""When checkpoints are taken, and by whom: at step boundaries, mostly in the background.

A periodic checkpoint is copied to host memory at the boundary and written by a thread while training goes on. A disk
that is slower than the training holds nobody up: of two that wait for it, the newer one is written. The final
checkpoint, and the one before an ordered stop, are written before anybody goes on. Rank 0 keeps a state that all
workers hold alike; one that is sharded over them is kept by all together (``rex_worker.shared_keeping``).

No failure of the disk ends a training, but for the final checkpoint: the operator is told, and the next one is tried.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rex_worker.background import Background, Job
from rex_worker.checkpoint import CheckpointFolder
from rex_worker.errors import first_line
from rex_worker.group import Group
from rex_worker.link import Link
from rex_worker.protocol import Checkpointed, CheckpointFailed
from rex_worker.replica import Replica
from rex_worker.staging import Snapshot, Stager

log = logging.getLogger("rex.checkpoint")


class Keeper:
    """Keeps checkpoints of a replica; without a folder it does nothing."""

    def __init__(self, folder: CheckpointFolder | None, every: int, link: Link) -> None:
        self._folder = folder
        self._every = every
        self._link = link
        self._stager = Stager()
        self._background = Background()
        self._taken_step = 0
        self._safe_step = 0
        self._saved = False

    def just_saved(self) -> bool:
        """Whether a checkpoint was taken since the last call."""
        saved, self._saved = self._saved, False
        return saved

    def load(self, replica: Replica) -> bool:
        """Put the newest whole checkpoint into ``replica``; False when there is none."""
        if self._folder is None:
            return False
        self.flush()
        self._folder.clear_unfinished()
        found = self._folder.load_newest()
        if found is None:
            return False
        state, step = found
        replica.adopt(state, resumed=True)
        self._taken_step = self._safe_step = step
        log.info("resumed from the checkpoint of step %d", step)
        return True

    def keep_if_due(self, replica: Replica, group: Group) -> None:
        """Take a periodic checkpoint when it is time and rank 0's turn; returns when the copy is made."""
        step = replica.step
        if self._folder is None or group.rank != 0 or step == 0 or step % self._every or step == self._taken_step:
            return
        self._taken_step, self._saved = step, True
        outrun = self._background.withdraw()
        if outrun is not None:
            log.warning("the disk is slow: the checkpoint of step %d is left out for that of %d", outrun.step, step)
            self._stager.release(outrun)
        taken = self._stager.take(replica.state(), step, replica.progress.samples)
        self._background.submit(Job(taken, self._writing(self._folder, group.generation)))

    def keep_now(self, replica: Replica, group: Group) -> None:
        """Take a checkpoint before the process ends; a failure is logged, the older ones remain."""
        self.flush()
        step = replica.step
        if self._folder is not None and group.rank == 0 and step > 0 and step != self._safe_step:
            taken = self._stager.take(replica.state(), step, replica.progress.samples)
            self._writing(self._folder, group.generation)(taken)

    def keep_final(self, replica: Replica, group: Group) -> None:
        """Commit the training's result. Raises ``OSError`` when that fails: then the job has not succeeded."""
        self.flush()
        if self._folder is None or group.rank != 0:
            return
        step, samples = replica.step, replica.progress.samples
        self._folder.save(self._stager.take(replica.state(), step, samples), final=True)
        self._committed(step, samples, group.generation, final=True)

    def flush(self) -> None:
        """Wait until what is being written is written."""
        self._background.flush()

    def _writing(self, folder: CheckpointFolder, generation: int) -> Callable[[Snapshot], None]:
        def write(taken: Snapshot) -> None:
            try:
                folder.save(taken)
            except Exception as error:
                self._failed(taken.step, generation, error)
            else:
                self._safe_step = max(self._safe_step, taken.step)
                self._committed(taken.step, taken.samples, generation, final=False)
            finally:
                self._stager.release(taken)

        return write

    def _committed(self, step: int, samples: int, generation: int, final: bool) -> None:
        message = Checkpointed(generation=generation, step=step, samples=samples, final=final)
        self._link.standing.checkpointed = message
        self._link.send(message)

    def _failed(self, step: int, generation: int, error: Exception) -> None:
        log.error("checkpoint of step %d failed (%s); the older ones are unharmed", step, first_line(error))
        message = f"{type(error).__name__}: {first_line(error)}"
        self._link.send(CheckpointFailed(generation=generation, step=step, message=message))
