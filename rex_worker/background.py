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

    @property
    def busy(self) -> bool:
        """Whether something is being done or waits."""
        with self._changed:
            return self._running or self._waiting is not None

    def withdraw(self) -> Snapshot | None:
        """Take back what waits, if anything does."""
        with self._changed:
            job, self._waiting = self._waiting, None
            return None if job is None else job.taken

    def submit(self, job: Job) -> None:
        """Do ``job`` as soon as the one before is done; nothing else may wait. Never blocks."""
        with self._changed:
            self._waiting = job
            if not self._running:
                self._running = True
                # A daemon: a disk that never answers must not keep the process from ending.
                threading.Thread(target=self._work, name="rex-checkpoint", daemon=True).start()

    def flush(self) -> None:
        """Wait until all is done."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)

    def _work(self) -> None:
        while True:
            with self._changed:
                job, self._waiting = self._waiting, None
                if job is None:
                    self._running = False
                    self._changed.notify_all()
                    return
            job.work(job.taken)
