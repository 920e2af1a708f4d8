"""This worker's part in the groups of its job: entering, switching, losing and leaving them.

A process outlives its groups. It enters one when the operator names it in a membership, gives it up when a peer is lost,
changes into the next at a boundary that all agreed on, and leaves for good when it is drained, stopped or told to go.
Everything here happens between steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Literal, NoReturn

import torch

from rex_worker.agreement import Wish
from rex_worker.environment import Environment
from rex_worker.errors import Departed, GroupLost
from rex_worker.group import Group
from rex_worker.link import Link
from rex_worker.meeting import Meeting
from rex_worker.protocol import Ack, Leaving, Left, Membership, Plan
from rex_worker.protocol import GroupLost as GroupLostMessage
from rex_worker.replica import Replica
from rex_worker.synchronisation import synchronise

log = logging.getLogger("rex")

CLOSE_S = 10.0
"""How long a leaving process tries to say its last words."""
_LOOK_S = 0.5
_EXIT_SIGTERM = 143


class Participation:
    """The running group and plan, and the way from one to the next."""

    def __init__(
        self,
        environment: Environment,
        link: Link,
        device: torch.device,
        meeting: Meeting | None,
        flush: Callable[[], None],
    ) -> None:
        self._environment = environment
        self._link = link
        self._device = device
        self._meeting = meeting
        self._flush = flush
        self._leave_by: float | None = None
        self._acknowledged: tuple[int, int] = (0, 0)
        self._finish = False
        self.generation = 0
        """Newest generation entered or tried."""
        self.group: Group | None = None
        self.membership: Membership | None = None
        self.plan: Plan | None = None
        self.entered = False
        """A group was entered since the last step."""

    @property
    def rank(self) -> int:
        """Rank in the present group, or in the last one."""
        return 0 if self.membership is None else self._place(self.membership) or 0

    def superseded(self) -> bool:
        """Whether a newer generation than the present one has been named."""
        return self._link.directives.newest_generation() > self.generation

    def local_batches(self) -> list[int]:
        """The plan's samples per step, in rank order."""
        assert self.plan is not None and self.membership is not None
        return [self.plan.local_batches[member.worker_id] for member in self.membership.members]

    def wish(self) -> Wish:
        """What this worker asks of its group."""
        wish = Wish.STOP if self._link.directives.stop is not None else Wish.NONE
        if self._leave_by is not None:
            wish |= Wish.LEAVE
        if self._finish:
            wish |= Wish.FINISH
        return wish

    def finish_early(self) -> None:
        """Ask the group to end the training after the step in flight."""
        self._finish = True

    def told_to_go(self, reason: str) -> None:
        """Note a SIGTERM; safe in a signal handler."""
        if self._leave_by is None:
            self._leave_by = time.monotonic() + 0.8 * self._environment.grace_s
            leaving = Leaving(reason=reason, grace_s=self._environment.grace_s)
            self._link.standing.leaving = leaving
            self._link.send(leaving)

    def enter_any(self, replica: Replica, load: Callable[[], bool]) -> None:
        """Wait for a membership and enter its group, until that has worked once."""
        while self.group is None:
            self._enter(self._await_membership(replica), replica, load)

    def change(self, generation: int, replica: Replica, load: Callable[[], bool]) -> None:
        """Leave the present group for the one of ``generation``, as all have agreed."""
        membership = self._link.directives.membership(generation)
        assert membership is not None, "agreed on a membership that is not held"
        self._drop_group()
        self._enter(membership, replica, load)

    def adopt_plan(self, version: int) -> None:
        """Run under another plan of this generation, as all have agreed."""
        plan = self._link.directives.plan(self.generation, version)
        assert plan is not None, "agreed on a plan that is not held"
        self._take_plan(plan)

    def acknowledge(self, step: int) -> None:
        """Say, once per plan, which step is the first under it."""
        assert self.plan is not None
        key = (self.plan.generation, self.plan.version)
        if key != self._acknowledged:
            self._acknowledged = key
            ack = Ack(generation=key[0], plan_version=key[1], step=step)
            self._link.standing.ack = ack
            self._link.send(ack)

    def lose(self, error: GroupLost, step: int) -> None:
        """Give the group up; the next membership decides."""
        log.warning("group of generation %d lost after step %d: %s", self.generation, step, error)
        self._drop_group()
        message = GroupLostMessage(generation=self.generation, step=step, message=str(error)[:500])
        self._link.standing.group_lost = message
        self._link.send(message)

    def depart(self, reason: Literal["finished", "drained", "stopped"], replica: Replica, code: int = 0) -> NoReturn:
        """Leave for good and end the process."""
        self._drop_group()
        self._flush()
        progress = replica.progress
        self._link.send(Left(reason=reason, step=progress.step, samples=progress.samples))
        if not self._link.close(CLOSE_S):
            log.warning("the operator could not be told that this worker left (%s)", reason)
        log.info("left the job: %s, at step %d", reason, progress.step)
        raise Departed(code)

    def leave_if_overdue(self, replica: Replica) -> None:
        """End the process when its grace after SIGTERM is over."""
        if self._leave_by is not None and time.monotonic() > self._leave_by:
            self.depart("drained", replica, _EXIT_SIGTERM)

    def depart_together(self, replica: Replica) -> NoReturn:
        """Leave when everybody was told to go."""
        self.depart("drained", replica, _EXIT_SIGTERM if self._link.alone else 0)

    def close(self) -> None:
        """Drop the group without a word: the process is about to fail."""
        self._drop_group()

    def _await_membership(self, replica: Replica) -> Membership:
        directives = self._link.directives
        while True:
            if directives.stop is not None:
                self.depart("stopped", replica)
            if directives.drain is not None or (self._leave_by is not None and not replica.has_state):
                self.depart("drained", replica)
            newest = directives.newest_generation()
            membership = directives.membership(newest) if newest > self.generation else None
            if membership is not None:
                return membership
            self.leave_if_overdue(replica)
            directives.await_change(self.generation, _LOOK_S)

    def _enter(self, membership: Membership, replica: Replica, load: Callable[[], bool]) -> None:
        self.generation = membership.generation
        rank = self._place(membership)
        if rank is None:
            self.depart("drained", replica)
        log.info("generation %d: rank %d of %d", membership.generation, rank, len(membership.members))
        try:
            self.group = self._meet(membership, rank)
            synchronise(self.group, replica, membership.min_step, load, self._device)
        except GroupLost as error:
            self.lose(error, replica.step)
            return
        self.membership = membership
        self.entered = True
        standing = self._link.standing
        standing.generation, standing.ready, standing.group_lost = membership.generation, None, None
        self._take_plan(membership.plan)

    def _meet(self, membership: Membership, rank: int) -> Group:
        if self._meeting is None:
            return Group(
                membership.generation, rank, 1, self._device, None, membership.collective_timeout_s, self.superseded
            )
        return self._meeting.join(membership, rank, self.superseded)

    def _take_plan(self, plan: Plan) -> None:
        self.plan = plan
        self._link.standing.plan_version = plan.version
        log.info(
            "plan %d: global batch %d, %d here, accumulation %d, learning rate x %.4g",
            plan.version,
            plan.global_batch,
            plan.local_batches[self._environment.worker_id],
            plan.accumulation,
            plan.learning_rate_factor,
        )

    def _place(self, membership: Membership) -> int | None:
        me = (self._environment.worker_id, self._environment.incarnation)
        places = [i for i, member in enumerate(membership.members) if (member.worker_id, member.incarnation) == me]
        return places[0] if places else None

    def _drop_group(self) -> None:
        if self.group is not None:
            self.group.close()
            self.group = None
