"""A generation's key-value store, asked in a way that never ties the worker up.

The store is served by one of the workers. While that one is frozen (not dead: its connection stays open) torch's
calls to the store wait for an answer without any bound. So each question is asked by a thread of its own, and the
training thread waits for the answer only while its generation has a future. Whoever gives a generation up says so
here, as the others may be waiting for it in the store, where they would learn nothing of a broken collective.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TypeVar

from torch._C._distributed_c10d import Store

from rex_worker.errors import GroupLost, first_line
from rex_worker.patience import PATIENCE_S, Patience, Superseded

_SLICE_S = 0.25
_LOST = "lost"

Answer = TypeVar("Answer")


class PatientStore:
    """Every question raises ``GroupLost`` when the store is gone, or is silent and a newer generation is named."""

    def __init__(self, store: Store, superseded: Superseded, patience_s: float = PATIENCE_S) -> None:
        self.store = store
        """torch's own; whoever asks it directly may wait for ever."""
        self._superseded = superseded
        self._patience_s = patience_s
        self._questions: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lost: Future[bool] | None = None
        # A daemon: an unanswered question must not keep the process from ending.
        threading.Thread(target=_ask_all, args=(self._questions,), name="rex-store", daemon=True).start()

    def add(self, key: str, amount: int = 1) -> int:
        """Add to the number under ``key``; returns the sum."""
        return self._ask(lambda: self.store.add(key, amount))

    def announce(self, key: str) -> None:
        """Set ``key``, which others look for."""
        self._ask(lambda: self.store.set(key, "1"))

    def announced(self, key: str) -> bool:
        """Whether ``key`` is set. Raises ``GroupLost`` when it is not and a member has given the generation up."""
        # torch's own Store.wait writes warnings for each time that it ends without the key.
        if self._ask(lambda: self.store.check([key])):
            return True
        if self._ask(lambda: self.store.check([_LOST])):
            raise GroupLost("another member has lost the group")
        return False

    def known_lost(self) -> bool:
        """Whether a member has given the generation up, as last answered; asks again, and never waits."""
        lost = self._lost
        if lost is not None and not lost.done():
            return False
        self._lost = self._put(lambda: self.store.check([_LOST]))
        return lost is not None and lost.exception() is None and lost.result()

    def give_up(self) -> None:
        """Tell the others that this generation has no future, if the store can still be reached; never waits."""
        self._questions.put(self._last_words)
        self._questions.put(None)

    def close(self) -> None:
        """Ask no more."""
        self._questions.put(None)

    def _last_words(self) -> None:
        with suppress(RuntimeError, ValueError):
            self.store.set(_LOST, "1")

    def _put(self, question: Callable[[], Answer]) -> Future[Answer]:
        answer: Future[Answer] = Future()

        def ask() -> None:
            try:
                answer.set_result(question())
            except BaseException as error:
                answer.set_exception(error)

        self._questions.put(ask)
        return answer

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        answer = self._put(question)
        patience = Patience(self._superseded, self._patience_s)
        while not wait([answer], _SLICE_S).done:
            patience.check()
        try:
            return answer.result()
        except (RuntimeError, ValueError) as error:
            raise GroupLost(f"the group's store is gone: {first_line(error)}") from error


def _ask_all(questions: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (ask := questions.get()) is not None:
        ask()
