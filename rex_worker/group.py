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
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh

from rex_worker.errors import GroupLost, first_line
from rex_worker.patience import PATIENCE_S, Patience, Superseded, pauses
from rex_worker.store import PatientStore

log = logging.getLogger("rex.group")

FIRST_STEP_TIMEOUT_S = 600.0
_FORM_TIMEOUT_S = 30.0
"""Members connect to each other when all have met, so that only one that died in that moment can keep them waiting."""
_REMARKABLE_S = 30.0
_SLICE = timedelta(seconds=0.25)


class Group:
    """The workers of one generation, in rank order. Every method may raise ``GroupLost``."""

    def __init__(
        self,
        generation: int,
        rank: int,
        size: int,
        device: torch.device,
        store: PatientStore | None,
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
        self._formed = False
        self.broken: GroupLost | None = None
        """Why the group is lost, once that is known."""
        self.closed = False
        if size > 1:
            self._initialise()

    def _initialise(self) -> None:
        if self._device.type == "cuda":
            # A failed collective must end the communicator, not the process (the default ends the process).
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
        self._formed = True
        try:
            dist.init_process_group(
                self._backend(),
                store=None if self._store is None else self._store.store,
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=_FORM_TIMEOUT_S),
            )
            _set_timeout(timedelta(seconds=self._timeout_s))
        except (RuntimeError, ValueError) as error:
            self.abandon()
            raise GroupLost(f"the group could not be formed: {first_line(error)}") from error

    def _backend(self) -> str:
        return "cpu:gloo,cuda:nccl" if self._device.type == "cuda" else "gloo"

    def mesh(self) -> DeviceMesh:
        """The group as a mesh of one dimension, for DTensors; a group of one has one, too."""
        if not self._formed:
            dist.init_process_group(self._backend(), store=HashStore(), rank=0, world_size=1)
            self._formed = True
        # Meshes of equal size and name are equal, whoever is in them, and DTensor's caches hold on to the first one.
        names = (f"generation_{self.generation}",)
        whole = dist.distributed_c10d._get_default_group()
        return DeviceMesh.from_group(whole, self._device.type, mesh_dim_names=names)

    def break_up(self, error: GroupLost) -> None:
        """Note a loss where it cannot be raised: it is at the next call."""
        self.broken = self.broken or error

    def check(self) -> None:
        """Raise ``GroupLost`` if the loss of the group was noted before."""
        if self.broken is not None:
            raise self.broken

    def started(self, start: Callable[[], Any]) -> Any:
        """Call torch to start a collective; a broken group shows as ``GroupLost``."""
        self.check()
        with _losing():
            return start()

    def all_reduce(self, tensor: torch.Tensor) -> dist.Work | None:
        """Start summing ``tensor`` over the group, in place; None when there is nobody to sum with."""
        self.check()
        if self.size == 1:
            return None
        with _losing():
            return dist.all_reduce(tensor, async_op=True)

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Give everybody the ``tensor`` of rank ``source``, in place."""
        self.check()
        if self.size > 1:
            with _losing():
                work = dist.broadcast(tensor, src=source, async_op=True)
            self.wait([work])

    def gathered(self, vector: torch.Tensor) -> torch.Tensor:
        """Gather each rank's 1-d CPU ``vector``: shape (size, len)."""
        self.check()
        if self.size == 1:
            return vector.reshape(1, -1).clone()
        result = torch.empty(self.size * vector.numel(), dtype=vector.dtype)
        with _losing():
            work = dist.all_gather_into_tensor(result, vector, async_op=True)
        self.wait([work])
        return result.view(self.size, -1)

    def wait(self, works: Sequence[dist.Work | None]) -> None:
        """Wait for collectives; give up when one fails, lasts too long or the group has been superseded."""
        begun = asked = time.monotonic()
        patience = Patience(self._superseded, max(PATIENCE_S, 3 * self._longest_s))
        for work in works:
            while work is not None and not self._completed(work):
                now = time.monotonic()
                if now > begun + self._timeout_s:
                    raise GroupLost(f"a collective was not done within {self._timeout_s:g} s")
                patience.check()
                if now > asked + _SLICE.total_seconds():
                    asked = now
                    if self._store is not None and self._store.known_lost():
                        raise GroupLost("another member has given the group up")
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
        self.check()
        store = self._store
        if store is None:
            return
        if store.add(f"gate/{name}") == self.size:
            store.announce(f"gate/{name}/open")
        self.await_key(f"gate/{name}/open")

    def announce(self, key: str) -> None:
        """Set a key that others ``await_key``."""
        if self._store is not None:
            self._store.announce(key)

    def await_key(self, key: str, deadline: float | None = None) -> bool:
        """Wait until ``key`` is announced; False when ``deadline`` (monotonic seconds) passed first."""
        patience = Patience(self._superseded)
        begun, told = time.monotonic(), False
        for pause in pauses():
            if self._store is None or self._store.announced(key):
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
        store = self._store
        if store is None:
            return
        if store.add("farewell") == self.size:
            store.announce("farewell/all")
        if self.rank == 0:
            self.await_key("farewell/all", time.monotonic() + timeout_s)

    def abandon(self) -> None:
        """Give the group up, and tell the others in the store, as a connection may outlive it."""
        self.break_up(GroupLost("the group was given up"))
        if self._store is not None:
            self._store.give_up()
        self.close()

    def close(self) -> None:
        """Put the group aside without blocking: what is still in flight ends in its own time."""
        if self._store is not None:
            self._store.close()
        self._store, self.closed = None, True
        if not self._formed or not dist.is_initialized():
            return
        remains = [dist.distributed_c10d._get_default_group()]
        if self._device.type == "cuda":
            remains[0].abort()
        dist.destroy_process_group()
        # Not a daemon: torch ends the process with an abort when its destructor outlives the interpreter.
        destroyer = threading.Thread(target=remains.clear, name="rex-old-group")
        destroyer.start()
        destroyer.join(_SLICE.total_seconds())


def _set_timeout(timeout: timedelta) -> None:
    if hasattr(dist, "set_timeout"):
        dist.set_timeout(timeout)
    else:  # torch before 2.10 or so: the same, under its old name
        dist.distributed_c10d._set_pg_timeout(timeout)


class _losing:
    """Turn torch's errors of a broken group into ``GroupLost``."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError | ValueError):
            raise GroupLost(f"the group is broken: {first_line(error)}") from error
