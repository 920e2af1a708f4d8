"""How a worker process begins and ends.

A script can end in many ways: at its last epoch, early, by an exception, by a signal, because the operator said so.
In each of them the others must be able to go on, the operator must learn what happened, and the exit code must tell
it too: 0 when the worker finished or left as planned, anything else when it did not. A worker whose script broke for
lack of memory has an exit code of its own, as it is replaced at nobody's expense.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from types import FrameType
from typing import Any

from rex_worker.errors import Departed, UsageError
from rex_worker.keeping import Keeper
from rex_worker.link import Link
from rex_worker.participation import CLOSE_S, Participation
from rex_worker.protocol import EXIT_OUT_OF_MEMORY, Failed, Left
from rex_worker.replica import Replica
from rex_worker.training import Training

log = logging.getLogger("rex")


class Lifetime:
    """Signals, and the last words."""

    def __init__(self, link: Link, participation: Participation, keeper: Keeper) -> None:
        self._link = link
        self._participation = participation
        self._keeper = keeper
        self._old_handlers: dict[int, Any] = {}
        self._running: tuple[Training, Replica] | None = None
        self._total_epochs = 0

    def begins_training(self, training: Training, replica: Replica, total_epochs: int) -> None:
        """From now on there is something to hand over."""
        self._running = (training, replica)
        self._total_epochs = total_epochs

    def begin(self) -> None:
        """Take over SIGTERM; in a job SIGINT as well."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM,) if self._link.alone else (signal.SIGTERM, signal.SIGINT):
                self._old_handlers[number] = signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._participation.told_to_go(signal.Signals(number).name)
        if self._running is None:
            self._link.send(Left(reason="drained"))
            self._link.close(CLOSE_S)
            raise Departed(128 + number if self._link.alone else 0)

    def end(self, error: BaseException | None) -> None:
        """The script's with block is over, by ``error`` if there is one; raises what the script should end with."""
        exits = isinstance(error, SystemExit) and error.code in (None, 0)
        try:
            if isinstance(error, Departed):
                return
            if error is None or (exits and self._is_done()):
                self._finish()
            elif exits:
                raise UsageError("the script called sys.exit before its last epoch ended")
            elif self._was_beaten(error):
                self._fail(error)
                raise Departed(EXIT_OUT_OF_MEMORY) from error
            else:
                self._fail(error)
        except Departed:
            raise
        except BaseException as late:
            self._fail(late)
            raise
        finally:
            self._participation.close()
            self._keeper.flush()
            for number, handler in self._old_handlers.items():
                signal.signal(number, handler)

    def _was_beaten(self, error: BaseException) -> bool:
        """Whether the device's memory is to blame: then a replacement, under a plan that asks for less, can go on."""
        return not self._link.alone and self._running is not None and self._running[0].was_beaten(error)

    def _is_done(self) -> bool:
        if self._running is None:
            return False
        progress = self._running[1].progress
        return progress.finished or progress.position.epoch >= self._total_epochs

    def _finish(self) -> None:
        if self._running is None:
            raise UsageError(
                "the script ended without training: iterate session.epochs(...) and session.loader(...) inside the with"
                " block"
            )
        training, replica = self._running
        last = self._participation.last
        if not self._is_done() and last is not None and last.group.size > 1:
            raise UsageError(
                f"the loop ended in epoch {replica.progress.position.epoch} of {self._total_epochs}, but other workers"
                " go on; to end early on all of them call session.stop()"
            )
        training.finish()
        self._link.send(Left(reason="finished", step=replica.step, samples=replica.progress.samples))
        if not self._link.close(CLOSE_S):
            log.warning("the operator could not be told that this worker has finished")

    def _fail(self, error: BaseException) -> None:
        self._participation.abandon()
        text = f"{type(error).__name__}: {error}"
        log.error("the training script failed: %s", text)
        step = 0 if self._running is None else self._running[1].step
        self._link.send(Failed(error=text[:2000], step=step))
        self._link.close(CLOSE_S)


def log_to_stderr(worker_id: str) -> None:
    """Give a worker process a log, unless its script has set up its own."""
    if not logging.getLogger().handlers:
        form = f"%(asctime)s {worker_id} %(levelname)s %(name)s: %(message)s"
        logging.basicConfig(level=logging.INFO, format=form, stream=sys.stderr)
