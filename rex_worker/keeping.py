"""When checkpoints are taken, and by whom: rank 0, at step boundaries, mostly in the background.

A periodic checkpoint is copied to host memory at the boundary and written by a thread while training goes on; a new
one waits for the last. The final one, and the one before an ordered stop, are written before anybody goes on.
"""

from __future__ import annotations

import logging
import threading

from rex_worker.checkpoint import CheckpointFolder, Snapshot, snapshot
from rex_worker.link import Link
from rex_worker.protocol import Checkpointed
from rex_worker.replica import Replica

log = logging.getLogger("rex.checkpoint")


class Keeper:
    """Keeps checkpoints of a replica; without a folder it does nothing."""

    def __init__(self, folder: CheckpointFolder | None, every: int, link: Link) -> None:
        self._folder = folder
        self._every = every
        self._link = link
        self._last_step = 0
        self._saved = False
        self._writer: threading.Thread | None = None

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
        replica.adopt(state)
        self._last_step = step
        log.info("resumed from the checkpoint of step %d", step)
        return True

    def keep_if_due(self, replica: Replica, generation: int, main: bool) -> None:
        """Take a periodic checkpoint when it is rank 0's turn."""
        step = replica.step
        if self._folder is None or not main or step == 0 or step % self._every or step == self._last_step:
            return
        self._last_step, self._saved = step, True
        taken = snapshot(replica.state(), step, replica.progress.samples)
        self.flush()
        self._writer = threading.Thread(
            target=self._write_or_warn, args=(self._folder, taken, generation), name="rex-checkpoint", daemon=True
        )
        self._writer.start()

    def keep_now(self, replica: Replica, generation: int, main: bool) -> None:
        """Take a checkpoint before the process ends; a failure is logged, the older ones remain."""
        self.flush()
        if self._folder is not None and main and replica.step > 0 and replica.step != self._last_step:
            taken = snapshot(replica.state(), replica.step, replica.progress.samples)
            self._write_or_warn(self._folder, taken, generation)

    def keep_final(self, replica: Replica, generation: int) -> None:
        """Commit the training's result. Raises ``OSError`` when that fails: then the job has not succeeded."""
        self.flush()
        if self._folder is None:
            return
        self._folder.save(snapshot(replica.state(), replica.step, replica.progress.samples), final=True)
        self._committed(replica.step, replica.progress.samples, generation, final=True)

    def flush(self) -> None:
        """Wait until what is being written is written."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _write_or_warn(self, folder: CheckpointFolder, taken: Snapshot, generation: int) -> None:
        try:
            folder.save(taken)
        except OSError as error:
            log.error("checkpoint of step %d failed (%s); the older ones are unharmed", taken.step, error)
            return
        self._committed(taken.step, taken.samples, generation, final=False)

    def _committed(self, step: int, samples: int, generation: int, final: bool) -> None:
        message = Checkpointed(generation=generation, step=step, samples=samples, final=final)
        self._link.standing.checkpointed = message
        self._link.send(message)
