"""Work for the disk, behind the training's back.

A disk can be slower than the training asks for checkpoints. Then training must not wait, and copies must not pile up in
memory: what is being written is finished, and of what waits behind it only the newest is worth writing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from rex_worker.staging import Snapshot


@dataclass(frozen=True)
class Job:
    """A snapshot, and what is to be done with it; ``work`` must not raise."""

    taken: Snapshot
    work: Callable[[Snapshot], None]


class Background:
    """One thread that does one job at a time; at most one more waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: Job | None = None
        self._running = False

    def withdraw(self) -> Snapshot | None:
        """Take back what waits, if anything does."""
        with self._changed:
            job, self._waiting = self._waiting, None
            return None if job is None else job.taken

    def submit(self, job: Job) -> None:
        """Do ``job`` at once, or after the one that is being done; nothing else may wait. Never blocks."""
        with self._changed:
            if self._running:
                self._waiting = job
                return
            self._running = True
        # A daemon: a disk that never answers must not keep the process from ending.
        threading.Thread(target=self._work, args=(job,), name="rex-checkpoint", daemon=True).start()

    def flush(self) -> None:
        """Wait until all is done."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)

    def _work(self, first: Job) -> None:
        job: Job | None = first
        while job is not None:
            job.work(job.taken)
            with self._changed:
                job, self._waiting = self._waiting, None
                if job is None:
                    self._running = False
                    self._changed.notify_all()
