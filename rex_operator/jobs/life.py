"""One life of a worker, and what the coordinator knows about it.

A worker's name is stable, its lives are not: a process or pod that is replaced comes back with the same id and another
incarnation, and late news of the earlier life must change nothing. So all that is known hangs on the life, and the name
only says which life is wanted at present.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from rex_operator.planning import WorkerInfo
from rex_worker.pod import LifeName, read_life
from rex_worker.protocol import Hello, Member

Key: TypeAlias = tuple[str, str]
"""(worker id, incarnation)."""

GIVE_UP_S = 30.0
"""A lost worker that has not turned up for this long is given up for good."""


@dataclass(frozen=True)
class Target:
    """A worker that exists or is being started."""

    incarnation: str
    """Its life, or an earlier one in the same pod: a process that was started again there is still the same wish."""
    pool: str
    device: str
    max_local_batch: int | None = None


@dataclass
class Life:
    """What is known of one incarnation. Times are on the coordinator's clock, in seconds."""

    worker_id: str
    incarnation: str
    pool: str = ""
    device: str = ""
    max_local_batch: int | None = None
    memory_bytes: int = 0
    wanted: bool = False
    """Named by the present target; a member that no longer is gets drained."""
    was_wanted: bool = False
    joined: bool = False
    """Was a member of some generation."""

    connected: bool = False
    changed_at: float = 0.0
    """When the channel last went up or down."""
    heard_at: float = 0.0
    address: str = ""
    store_port: int = 0
    ready_at: float | None = None
    generation: int = 0
    """Generation that the worker is known to run."""
    plan_version: int = 0
    """Newest plan that it is known to run."""
    plan_step: int = 0
    """First step that it ran under that plan."""
    step: int = 0
    samples: int = 0

    leaving: bool = False
    drained: bool = False
    """A Drain was sent to it."""
    group_lost: int = 0
    """Newest generation of which it reported the loss."""
    left: Literal["", "finished", "drained", "stopped"] = ""
    lost: str = ""
    """Why the rest goes on without it; cleared when it turns up again, unless ``gone``."""
    missed_at: float | None = None
    given_up: bool = False
    """Another should take its place."""
    gone: bool = False
    failed: str = ""
    out_of_memory: tuple[int, int] = (0, 0)
    """Newest plan of which it said that it does not fit, and the smallest pass that did not."""
    exits: tuple[int, ...] = ()
    """How its earlier processes in the same pod ended."""

    def __post_init__(self) -> None:
        self.name: LifeName = read_life(self.incarnation)

    @property
    def key(self) -> Key:
        """Identity of this life."""
        return self.worker_id, self.incarnation

    @property
    def alive(self) -> bool:
        """Whether the group can still count on it."""
        return not (self.gone or self.lost or self.left)

    @property
    def starting(self) -> bool:
        """Whether it is awaited and not yet ready."""
        return self.wanted and self.alive and self.ready_at is None

    @property
    def departing(self) -> bool:
        """Whether the group should go on without it as soon as it can."""
        return self.leaving or not self.wanted

    def succeed(self, before: Life) -> None:
        """Take the place of an earlier process of the same worker in the same pod, which is dead."""
        self.pool, self.device, self.max_local_batch = before.pool, before.device, before.max_local_batch
        self.wanted, self.was_wanted = before.wanted, before.was_wanted
        before.end("its process was started again")

    def end(self, reason: str) -> None:
        """Its process is known to be dead."""
        self.gone, self.connected, self.wanted = True, False, False
        self.lost = self.lost or reason or "gone"

    def info(self) -> WorkerInfo:
        """What the planner needs to know of it."""
        return WorkerInfo(
            self.worker_id, self.incarnation, self.device, self.max_local_batch, self.memory_bytes, self.pool
        )

    def member(self) -> Member:
        """Its entry in a Membership."""
        return Member(
            worker_id=self.worker_id, incarnation=self.incarnation, address=self.address, store_port=self.store_port
        )

    def miss(self, others_are_there: bool, now: float) -> None:
        """Give a lost one up when it has not turned up for long, though others could: its process may live, but alone.

        When nobody can be heard the fault may be this side's, and they may train on together.
        """
        if not (self.lost and others_are_there) or self.gone or self.left or self.connected:
            self.missed_at = None
        elif self.missed_at is None:
            self.missed_at = now
        self.given_up = self.missed_at is not None and now - self.missed_at > GIVE_UP_S

    def greet(self, hello: Hello, now: float) -> None:
        """Take in the first message of a new session."""
        self.connected, self.changed_at, self.heard_at = True, now, now
        self.address, self.store_port = hello.address, hello.store_port
        self.device = self.device or hello.device
        self.memory_bytes = hello.device_memory_bytes
        self.exits = tuple(hello.exits)
        self.generation = max(self.generation, hello.generation)
        if hello.plan_version > self.plan_version:
            self.plan_version, self.plan_step = hello.plan_version, hello.step
        self.step = max(self.step, hello.step)
        if self.lost and not self.gone:
            self.lost, self.ready_at = "", now  # it is back, and joins like a newcomer
        if hello.generation > 0 and self.ready_at is None:
            self.ready_at = now  # it has been in a group, so model and data are built
