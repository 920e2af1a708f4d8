"""Who the worker takes its orders from: the operator, or itself when it trains alone.

A script must run the same under ``python train.py`` as in a job. So without a channel the session is a job of one
worker that writes its own membership and plan, and everything behind this seam is one code path.
"""

from __future__ import annotations

from typing import Protocol

from rex_worker.channel import Channel, Introduction, Standing
from rex_worker.directives import Directives
from rex_worker.environment import Environment
from rex_worker.protocol import Member, Membership, Message, Plan, Ready, StepReport


class Link(Protocol):
    """The worker's connection to whoever plans its job."""

    directives: Directives
    standing: Standing
    alone: bool

    def begin(self, batch_size: int, ready: Ready) -> None:
        """Model and data are built, and the script asked for ``batch_size`` samples a step on each worker."""

    def send(self, message: Message) -> None:
        """Say something that must arrive; never blocks."""

    def report(self, generation: int, report: StepReport) -> None:
        """Report a step; may be thinned; never blocks."""

    def close(self, timeout: float) -> bool:
        """Say what is left to say and hang up; False when it could not be said in ``timeout`` seconds."""


class OperatorLink:
    """Orders come through the channel."""

    alone = False

    def __init__(self, environment: Environment, introduction: Introduction) -> None:
        self.directives = Directives()
        self.standing = Standing()
        self._channel = Channel(environment, introduction, self.directives, self.standing)

    def begin(self, batch_size: int, ready: Ready) -> None:
        """Say that this worker can join; the operator knows the job's batch by itself."""
        self.standing.ready = ready
        self.send(ready)

    def send(self, message: Message) -> None:
        """Queue a notice."""
        self._channel.send(message)

    def report(self, generation: int, report: StepReport) -> None:
        """Queue a step report."""
        self._channel.telemetry.add(generation, report)

    def close(self, timeout: float) -> bool:
        """Flush and close the channel."""
        return self._channel.close(timeout)


class AloneLink:
    """There is no operator: a group of one, with a fixed batch."""

    alone = True

    def __init__(self, environment: Environment) -> None:
        self.directives = Directives()
        self.standing = Standing()
        self._environment = environment

    def begin(self, batch_size: int, ready: Ready) -> None:
        """Write the membership and the plan that an operator would have sent."""
        me = self._environment
        plan = Plan(generation=1, version=1, global_batch=batch_size, local_batches={me.worker_id: batch_size})
        member = Member(worker_id=me.worker_id, incarnation=me.incarnation, address="127.0.0.1", store_port=1)
        self.directives.receive(Membership(generation=1, members=[member], plan=plan))

    def send(self, message: Message) -> None:
        """Nobody listens."""

    def report(self, generation: int, report: StepReport) -> None:
        """Nobody listens."""

    def close(self, timeout: float) -> bool:
        """Nothing is open."""
        return True
