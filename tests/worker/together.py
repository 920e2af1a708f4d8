"""Runs one script as several workers in threads of this process: real sessions, whose sums are done by a double.

What a property test wants to vary (shares, accumulation, models) then costs milliseconds; the double only stands for
the process group. Torch's own groups cannot have several members in one process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch._dynamo  # optimisers import it lazily, which threads would do at the same time
from torch import Tensor

from rex_worker.directives import Directives
from rex_worker.environment import Environment
from rex_worker.errors import GroupLost
from rex_worker.group import Group
from rex_worker.link import AloneLink
from rex_worker.protocol import Member, Membership, Message, Plan, Ready, StepReport, Stop
from rex_worker.session import Session

T = TypeVar("T")
TIMEOUT_S = 20.0


class Hub:
    """Where the ranks' collectives meet, in the order in which each rank starts them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.broken = False
        self._changed = threading.Condition()
        self._waiting: dict[tuple[str, int], dict[int, Tensor]] = {}
        self._done: set[tuple[str, int]] = set()

    def join(self, key: tuple[str, int], rank: int, tensor: Tensor, combine: Callable[[list[Tensor]], None]) -> None:
        """Hand ``tensor`` in; the last rank combines all."""
        with self._changed:
            parts = self._waiting.setdefault(key, {})
            parts[rank] = tensor
            if len(parts) == self.size:
                ordered = [parts[rank] for rank in range(self.size)]
                assert len({part.shape for part in ordered}) == 1, f"{key}: the ranks disagree on what to sum"
                combine(ordered)
                self._done.add(key)
                self._changed.notify_all()

    def wait(self, key: tuple[str, int]) -> None:
        """Wait until all have handed in."""
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._done or self.broken, TIMEOUT_S) or self.broken:
                raise GroupLost("a thread of the test failed")

    def give_up(self) -> None:
        """Let nobody wait any more."""
        with self._changed:
            self.broken = True
            self._changed.notify_all()


class ThreadGroup(Group):
    """One rank's end of a hub."""

    def __init__(self, hub: Hub, rank: int) -> None:
        self._hub = hub
        self._collectives = 0
        self.sent: list[torch.dtype] = []
        super().__init__(1, rank, hub.size, torch.device("cpu"), None, 60.0, lambda: False)

    def _initialise(self) -> None:
        return

    def _start(self, tensor: Tensor, combine: Callable[[list[Tensor]], None]) -> Any:
        self._collectives += 1
        key = ("collective", self._collectives)
        self._hub.join(key, self.rank, tensor, combine)
        return key

    def all_reduce(self, tensor: Tensor) -> Any:
        if self.size == 1:
            return None
        self.sent.append(tensor.dtype)
        return self._start(tensor, _sum)

    def broadcast(self, tensor: Tensor, source: int) -> None:
        def spread(parts: list[Tensor]) -> None:
            for part in parts:
                part.copy_(parts[source])

        self.wait([self._start(tensor, spread)])

    def gathered(self, vector: Tensor) -> Tensor:
        table = torch.zeros(self.size, vector.numel(), dtype=vector.dtype)
        table[self.rank] = vector
        self.wait([self._start(table, _sum)])
        return table

    def wait(self, works: Sequence[Any]) -> None:
        for work in works:
            if work is not None:
                self._hub.wait(work)

    def tighten(self) -> None:
        return

    def gate(self, name: str) -> None:
        key = (name, 0)
        self._hub.join(key, self.rank, torch.zeros(1), _sum)
        self._hub.wait(key)

    def await_key(self, key: str, deadline: float | None = None) -> bool:
        return True

    def farewell(self, timeout_s: float) -> None:
        return

    def abandon(self) -> None:
        self._hub.give_up()

    def close(self) -> None:
        return


def _sum(parts: list[Tensor]) -> None:
    total = torch.stack(parts).sum(0)
    for part in parts:
        part.copy_(total)


def plan_of(version: int, batches: Sequence[int], passes: Sequence[int]) -> Plan:
    """The plan of a group of threads: each rank's share, and in how many passes it takes that."""
    most = max(passes)
    return Plan(
        generation=1,
        version=version,
        global_batch=sum(batches),
        accumulation=most,
        local_batches={f"w{rank}": batch for rank, batch in enumerate(batches)},
        passes={f"w{rank}": own for rank, own in enumerate(passes) if own < most},
    )


class _PlannedLink(AloneLink):
    """Says what an operator would have said to a group of threads."""

    alone = False

    def __init__(self, environment: Environment, batches: Sequence[int], passes: Sequence[int]) -> None:
        super().__init__(environment)
        self.directives = Directives()
        self.reports: list[StepReport] = []
        self.messages: list[Message] = []
        names = [f"w{rank}" for rank in range(len(batches))]
        plan = plan_of(1, batches, passes)
        members = [Member(worker_id=n, incarnation="life", address="127.0.0.1", store_port=1) for n in names]
        self.directives.receive(Membership(generation=1, members=members, plan=plan))

    def begin(self, batch_size: int, ready: Ready) -> None:
        return

    def send(self, message: Message) -> None:
        self.messages.append(message)

    def report(self, generation: int, report: StepReport) -> None:
        self.reports.append(report)


def run_together(
    batches: Sequence[int], script: Callable[[Session], T], accumulation: int | Sequence[int] = 1, seed: int = 7
) -> list[T]:
    """Run ``script`` once per share in ``batches``, each in a thread with a session of its own.

    The script uses the session as a context manager by itself. ``accumulation``: each rank's passes, or those of all.
    Returns what the scripts returned, in rank order.

    Raises:
        BaseException: The first error of any rank.
    """
    passes = [accumulation] * len(batches) if isinstance(accumulation, int) else accumulation
    hub = Hub(len(batches))
    results: dict[int, T] = {}
    links: list[_PlannedLink] = []
    errors: list[tuple[int, BaseException]] = []

    def work(rank: int) -> None:
        environment = Environment(job="t/t", worker_id=f"w{rank}", incarnation="life", device="t4", seed=seed)
        session = Session(environment)
        link: Any = _PlannedLink(environment, batches, passes)
        links.append(link)
        for owner in (session, session._participation, session._keeper, session._lifetime):
            owner._link = link
        session._participation._meet = lambda membership, rank: ThreadGroup(hub, rank)  # type: ignore[method-assign]
        try:
            results[rank] = script(session)
        except BaseException as error:
            errors.append((rank, error))
            hub.give_up()
            for peer in links:
                peer.directives.receive(Stop())

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * TIMEOUT_S)
    if errors:
        raise errors[0][1]
    assert len(results) == len(batches), "a worker did not end"
    return [results[rank] for rank in range(len(batches))]


def link_of(session: Session) -> Any:
    """What the worker said: ``reports`` and ``messages``; and what it is told: ``directives``."""
    return session._link
