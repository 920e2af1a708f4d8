"""When checkpoints are taken, and by whom: at step boundaries, mostly in the background.

A periodic checkpoint is copied to host memory at the boundary and written by a thread while training goes on. A disk
that is slower than the training holds nobody up: of two that wait for it, the newer one is written. The final
checkpoint, and the one before an ordered stop, are written before anybody goes on. Rank 0 keeps a state that all
workers hold alike; one that is cut into shards is kept by all together (``rex_worker.joint``).

No failure of the disk ends a training, but for the final checkpoint: the operator is told, and the next one is tried.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rex_worker.background import Background, Job
from rex_worker.checkpoint import CheckpointFolder
from rex_worker.errors import GroupLost, first_line
from rex_worker.group import Group
from rex_worker.joint import JointSave
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
        self._joint: JointSave | None = None
        """The periodic checkpoint that all workers are writing."""
        self._taken_step = 0
        self._safe_step = 0
        self._saved = False

    def just_saved(self) -> bool:
        """Whether a checkpoint was taken since the last call."""
        saved, self._saved = self._saved, False
        return saved

    def load(self, replica: Replica, group: Group) -> bool:
        """Put the newest whole checkpoint into ``replica``; False when there is none.

        Called on rank 0, or, where the state is cut into shards, on all ranks.
        """
        if self._folder is None:
            return False
        self.flush()
        self._joint = None
        if group.rank == 0:
            self._folder.clear_unfinished()
        newest = self._folder.load_newest_sharded
        found = newest(replica.like, group) if replica.together else self._folder.load_newest()
        if found is None:
            return False
        state, step = found
        replica.adopt(state, resumed=True)
        replica.passed_over = 0
        if self._folder.passed_over:
            replica.passed_over, trouble = self._folder.passed_over[0]
            if group.rank == 0:
                failed = CheckpointFailed(
                    generation=group.generation, step=replica.passed_over, message=trouble, resumed=step
                )
                self._link.send(failed)
        self._taken_step = self._safe_step = step
        log.info("resumed from the checkpoint of step %d", step)
        return True

    def keep_if_due(self, replica: Replica, group: Group) -> None:
        """Take a periodic checkpoint when it is time; returns when the copy is made. All ranks call it."""
        if self._folder is None:
            return
        step = replica.step
        if replica.together:
            try:
                self._keep_together(self._folder, replica, group)
            except GroupLost as error:
                group.break_up(error)
        elif group.rank == 0 and step > 0 and step % self._every == 0 and step != self._taken_step:
            self._taken_step, self._saved = step, True
            outrun = self._background.withdraw()
            if outrun is not None:
                log.warning("the disk is slow: the checkpoint of step %d is left out for that of %d", outrun.step, step)
                self._stager.release(outrun)
            taken = self._stager.take(replica.state(), step, replica.progress.samples)
            self._background.submit(Job(taken, self._saving(self._folder, group.generation)))

    def keep_now(self, replica: Replica, group: Group) -> None:
        """Take a checkpoint before the process ends; a failure is logged, the older ones remain. All ranks call it."""
        self.flush()
        step = replica.step
        if self._folder is None or step == 0:
            return
        if replica.together:
            try:
                joint = self._write_together(self._folder, replica, group, f"kept-{step}")
                self._commit(joint, joint.parts(group))
            except GroupLost as error:
                log.error("checkpoint of step %d is lost with the group: %s", step, error)
                group.break_up(error)
        elif group.rank == 0 and step != self._safe_step:
            taken = self._stager.take(replica.state(), step, replica.progress.samples)
            self._saving(self._folder, group.generation)(taken)

    def keep_final(self, replica: Replica, group: Group) -> None:
        """Commit the training's result; all ranks call it.

        Raises:
            OSError: That failed: then the job has not succeeded.
            GroupLost: A rank was lost that had a part of it.
        """
        self.flush()
        if self._folder is None:
            return
        step, samples = replica.step, replica.progress.samples
        if replica.together:
            joint = self._write_together(self._folder, replica, group, f"kept-{step}-final")
            joint.commit(joint.parts(group), final=True)
        elif group.rank == 0:
            self._folder.save(self._stager.take(replica.state(), step, samples), final=True)
        if group.rank == 0:
            self._committed(step, samples, group.generation, final=True)

    def flush(self) -> None:
        """Wait until what is being written is written."""
        self._background.flush()

    # --- one rank for all -------------------------------------------------------------------------------------------

    def _saving(self, folder: CheckpointFolder, generation: int) -> Callable[[Snapshot], None]:
        def save(taken: Snapshot) -> None:
            try:
                folder.save(taken)
            except Exception as error:
                self._failed(taken.step, generation, error)
            else:
                self._committed(taken.step, taken.samples, generation, final=False)
            finally:
                self._stager.release(taken)

        return save

    # --- all ranks together -----------------------------------------------------------------------------------------

    def _keep_together(self, folder: CheckpointFolder, replica: Replica, group: Group) -> None:
        """At a boundary, on all ranks: see how far the running one is, and begin one that is due.

        Whether it is due is told from what all have in common. Not at the step at which the group formed: a newcomer
        comes here then, and the others may not.
        """
        step = replica.step
        if step <= replica.entered_at:
            return
        joint = self._joint
        if joint is not None and joint.generation != group.generation:
            joint.give_up()
            joint = None
        if joint is not None and joint.is_written(group, step):
            parts = joint.parts(group)
            if group.rank == 0:
                committing = joint
                self._background.submit(Job(joint.taken, lambda _: self._commit(committing, parts)))
            else:
                self._stager.release(joint.taken)
            joint = None
        self._joint = joint
        if step // self._every <= replica.kept_step // self._every:
            return
        if joint is not None:
            if step % self._every == 0:
                log.warning("the disk is slow: the checkpoint of step %d is taken later", step)
            return
        replica.kept_step = step
        self._saved = True
        self._joint = joint = JointSave(folder, self._stager, replica, group)
        self._background.submit(Job(joint.taken, lambda _: joint.write()))

    def _write_together(self, folder: CheckpointFolder, replica: Replica, group: Group, gate: str) -> JointSave:
        """Write one that all ranks wait for; one that was under way is not needed any more."""
        outrun, self._joint = self._joint, None
        joint = JointSave(folder, self._stager, replica, group)
        if outrun is not None:  # all have come here, so nobody writes to it any more
            outrun.give_up()
        joint.write()
        group.gate(gate)
        return joint

    def _commit(self, joint: JointSave, parts: list[str]) -> None:
        taken = joint.taken
        try:
            joint.commit(parts, final=False)
        except Exception as error:
            if taken.rank == 0:
                self._failed(taken.step, joint.generation, error)
        else:
            if taken.rank == 0:
                self._committed(taken.step, taken.samples, joint.generation, final=False)
        finally:
            self._stager.release(taken)

    # --- what the operator hears ------------------------------------------------------------------------------------

    def _committed(self, step: int, samples: int, generation: int, final: bool) -> None:
        self._safe_step = max(self._safe_step, step)
        message = Checkpointed(generation=generation, step=step, samples=samples, final=final)
        self._link.standing.checkpointed = message
        self._link.send(message)

    def _failed(self, step: int, generation: int, error: Exception) -> None:
        log.error("checkpoint of step %d failed (%s); the older ones are unharmed", step, first_line(error))
        message = f"{type(error).__name__}: {first_line(error)}"
        self._link.send(CheckpointFailed(generation=generation, step=step, message=message))
