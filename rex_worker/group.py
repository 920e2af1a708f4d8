"""The communication of one generation: a process group that may die at any moment without taking the process along.

torch's own answer to a lost peer is an error after a time-out, and its own answer to an error is to end the process.
Here each wait is taken in slices, so that a worker notices when the operator has already named the next generation
(a frozen peer never sends an error), and a group that failed is put aside at once: its destruction, which may block
until the time-out of what is still in flight, happens in a thread that nobody waits for.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from rex_worker.errors import GroupLost

log = logging.getLogger("rex.group")

Superseded = Callable[[], bool]
"""Whether a newer generation has been named."""

PATIENCE_S = 2.0
"""A wait is given up this long after a newer generation was first seen (or three times the longest wait before it, if
that is more): whoever is alive arrives within it."""
FIRST_STEP_TIMEOUT_S = 600.0
_REMARKABLE_S = 30.0
_LONGEST_PAUSE_S = 0.05
_SLICE = timedelta(seconds=0.25)


class Group:
    """The workers of one generation, in rank order. Every method may raise ``GroupLost``."""

    def __init__(
        self,
        generation: int,
        rank: int,
        size: int,
        device: torch.device,
        store: Store | None,
        timeout_s: float,
        superseded: Superseded,
    ) -> None:
        self.generation = generation
        self.rank = rank
        self.size = size
        self._device = device
        self._store = store
        self._steady_timeout_s = timeout_s
        self._timeout_s = max(timeout_s, FIRST_STEP_TIMEOUT_S)
        self._superseded = superseded
        self._longest_s = 0.0
        if size > 1:
            self._initialise()

    def _initialise(self) -> None:
        if self._device.type == "cuda":
            # A failed collective must end the communicator, not the process (the default ends the process).
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
        try:
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if self._device.type == "cuda" else "gloo",
                store=self._store,
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=self._timeout_s),
            )
        except (RuntimeError, ValueError) as error:
            self.close()
            raise GroupLost(f"the group could not be formed: {_first_line(error)}") from error

    def all_reduce(self, tensor: torch.Tensor) -> dist.Work | None:
        """Start summing ``tensor`` over the group, in place; None when there is nobody to sum with."""
        if self.size == 1:
            return None
        with _losing():
            return dist.all_reduce(tensor, async_op=True)

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Give everybody the ``tensor`` of rank ``source``, in place."""
        if self.size > 1:
            with _losing():
                work = dist.broadcast(tensor, src=source, async_op=True)
            self.wait([work])

    def gathered(self, vector: torch.Tensor) -> torch.Tensor:
        """Gather each rank's 1-d CPU ``vector``: shape (size, len)."""
        if self.size == 1:
            return vector.reshape(1, -1).clone()
        result = torch.empty(self.size * vector.numel(), dtype=vector.dtype)
        with _losing():
            work = dist.all_gather_into_tensor(result, vector, async_op=True)
        self.wait([work])
        return result.view(self.size, -1)

    def wait(self, works: Sequence[dist.Work | None]) -> None:
        """Wait for collectives; give up when one fails, lasts too long or the group has been superseded."""
        begun = time.monotonic()
        patience = _Patience(self._superseded, max(PATIENCE_S, 3 * self._longest_s))
        for work in works:
            while work is not None and not self._completed(work):
                if time.monotonic() > begun + self._timeout_s:
                    raise GroupLost(f"a collective was not done within {self._timeout_s:g} s")
                patience.check()
        self._longest_s = max(self._longest_s, time.monotonic() - begun)

    def _completed(self, work: dist.Work) -> bool:
        """Wait one slice; True when the work is done, ``GroupLost`` when it failed."""
        if self._device.type == "cuda" and not work.is_completed():
            time.sleep(0.0002)
            return False
        try:
            work.wait(_SLICE)
        except RuntimeError:
            if not work.is_completed():
                return False
            with _losing():
                work.wait(_SLICE)
        return True

    def tighten(self) -> None:
        """The first step is done: from now on collectives have the membership's own time-out.

        Until then they have a longer one, as a newcomer may compile its model or read its data for minutes.
        """
        if self._timeout_s != self._steady_timeout_s:
            self._timeout_s = self._steady_timeout_s
            if self.size > 1:
                _set_timeout(timedelta(seconds=self._timeout_s))

    def gate(self, name: str) -> None:
        """Meet all others, however long one of them is busy elsewhere (an evaluation, a checkpoint).

        Goes through the store, not through a collective: a busy worker is no lost one. A worker that is gone is known
        by its store's connection or by the next generation's membership.
        """
        if self._store is None:
            return
        with _losing():
            if self._store.add(f"gate/{name}", 1) == self.size:
                self._store.set(f"gate/{name}/open", "1")
        self.await_key(f"gate/{name}/open")

    def announce(self, key: str) -> None:
        """Set a key that others ``await_key``."""
        if self._store is not None:
            with _losing():
                self._store.set(key, "1")

    def await_key(self, key: str, deadline: float | None = None) -> bool:
        """Wait until ``key`` is announced; False when ``deadline`` (monotonic seconds) passed first."""
        patience = _Patience(self._superseded, PATIENCE_S)
        begun, told = time.monotonic(), False
        for pause in pauses():
            if self._store is None:
                break
            with _losing():
                if self._store.check([key]):
                    break
            now = time.monotonic()
            if deadline is not None and now > deadline:
                return False
            if now - begun > _REMARKABLE_S and not told:
                log.info("waiting for the other workers (%s)", key)
                told = True
            patience.check()
            time.sleep(pause)
        return True

    def farewell(self, timeout_s: float) -> None:
        """Part for good: rank 0 keeps its store open until all others have left, at most ``timeout_s`` seconds."""
        if self._store is None:
            return
        with _losing():
            if self._store.add("farewell", 1) == self.size:
                self._store.set("farewell/all", "1")
        if self.rank == 0:
            self.await_key("farewell/all", time.monotonic() + timeout_s)

    def close(self) -> None:
        """Put the group aside without blocking: what is still in flight ends in its own time."""
        self._store = None
        if self.size == 1 or not dist.is_initialized():
            return
        remains = [dist.distributed_c10d._get_default_group()]
        if self._device.type == "cuda":
            remains[0].abort()
        dist.destroy_process_group()
        # Not a daemon: torch ends the process with an abort when its destructor outlives the interpreter.
        destroyer = threading.Thread(target=remains.clear, name="rex-old-group")
        destroyer.start()
        destroyer.join(_SLICE.total_seconds())


def pauses() -> Iterator[float]:
    """Seconds to sleep between looks into a store, endlessly: short at first, as most waits are.

    torch's own ``Store.wait`` writes warnings for each time that it ends without the key.
    """
    pause = 0.001
    while True:
        yield pause
        pause = min(_LONGEST_PAUSE_S, pause * 1.5)


def _set_timeout(timeout: timedelta) -> None:
    if hasattr(dist, "set_timeout"):
        dist.set_timeout(timeout)
    else:  # torch before 2.10 or so: the same, under its old name
        dist.distributed_c10d._set_pg_timeout(timeout)


class _Patience:
    """Ends a wait some time after it became clear that the group has no future."""

    def __init__(self, superseded: Superseded, seconds: float) -> None:
        self._superseded = superseded
        self._seconds = seconds
        self._since: float | None = None

    def check(self) -> None:
        """Raise ``GroupLost`` when patience is at its end."""
        if self._since is None:
            self._since = time.monotonic() if self._superseded() else None
        elif time.monotonic() - self._since > self._seconds:
            raise GroupLost("a newer generation was named while this one waited")


class _losing:
    """Turn torch's errors of a broken group into ``GroupLost``."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError | ValueError):
            raise GroupLost(f"the group is broken: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:300] or type(error).__name__
