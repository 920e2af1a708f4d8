"""This worker's part in the groups of its job: entering, switching, losing and leaving them.

A process outlives its groups. It enters one when the operator names it in a membership, gives it up when a peer is
lost, changes into the next at a boundary that all agreed on, and leaves for good when it is drained, stopped or told
to go. Everything here happens between steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NoReturn

import torch

from rex_worker.agreement import Wish
from rex_worker.environment import Environment
from rex_worker.errors import Departed, GroupLost, RexError
from rex_worker.group import Group
from rex_worker.link import Link
from rex_worker.meeting import Meeting
from rex_worker.protocol import Ack, Leaving, Left, Membership, Plan
from rex_worker.protocol import GroupLost as GroupLostMessage
from rex_worker.replica import Replica

log = logging.getLogger("rex")

CLOSE_S = 10.0
"""How long a leaving process tries to say its last words."""
_LOOK_S = 0.5
_EXIT_SIGTERM = 143

Load = Callable[[Group], bool]
"""Loads the newest checkpoint, for a group that has nothing newer; False when there is none."""


@dataclass(frozen=True)
class Term:
    """A group and the plan that it runs under."""

    group: Group
    membership: Membership
    plan: Plan

    def local_batches(self) -> list[int]:
        """The plan's samples per step, in rank order."""
        return [self.plan.local_batches[member.worker_id] for member in self.membership.members]


class Participation:
    """The running term, and the way from one to the next."""

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
        self._generation = 0
        self.term: Term | None = None
        """None while the worker is in no group."""
        self.last: Term | None = None
        """The present term or, between groups, the one before."""
        self.entered = False
        """A group was entered since the last step."""

    @property
    def present(self) -> Term:
        """The running term. Raises ``RexError`` between groups."""
        if self.term is None:
            raise RexError("this worker is in no group at the moment")
        return self.term

    def superseded(self) -> bool:
        """Whether a newer generation than the last one entered or tried has been named."""
        return self._link.directives.newest_generation() > self._generation

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

    # --- entering ---------------------------------------------------------------------------------------------------

    def enter_any(self, replica: Replica, load: Load) -> Term:
        """Return the running term; between groups, wait for a membership and enter its group, until that works."""
        while self.term is None:
            self._enter(self._await_membership(replica), replica, load)
        return self.term

    def change(self, generation: int, replica: Replica, load: Load) -> None:
        """Leave the present group for the one of ``generation``, as all have agreed."""
        membership = self._link.directives.membership(generation)
        if membership is not None:
            self._hand_over(membership, replica)
        self.close()
        if membership is not None:  # else a newer one has pushed it out, and is waiting
            self._enter(membership, replica, load)

    def _hand_over(self, following: Membership, replica: Replica) -> None:
        """Let those who will be missing in the next group give the others what only they have."""
        named = {(member.worker_id, member.incarnation) for member in following.members}
        present = self.present.membership.members
        leaving = [i for i, member in enumerate(present) if (member.worker_id, member.incarnation) not in named]
        try:
            replica.hand_over(self.present.group, leaving)
        except GroupLost as error:
            log.warning("generation %d broke up while its state was handed over: %s", self._generation, error)

    def _await_membership(self, replica: Replica) -> Membership:
        directives = self._link.directives
        while True:
            if directives.stop is not None:
                self.depart("stopped", replica)
            if directives.drain is not None or (self._leave_by is not None and not replica.has_state):
                self.depart("drained", replica)
            newest = directives.newest_generation()
            membership = directives.membership(newest) if newest > self._generation else None
            if membership is not None:
                return membership
            self.leave_if_overdue(replica)
            directives.await_change(self._generation, _LOOK_S)

    def _enter(self, membership: Membership, replica: Replica, load: Load) -> None:
        self._generation = membership.generation
        rank = self._place(membership)
        if rank is None:
            self.depart("drained", replica)
        log.info("generation %d: rank %d of %d", membership.generation, rank, len(membership.members))
        replica.rank = rank
        group = None
        try:
            group = self._meet(membership, rank)
            replica.synchronise(group, membership.min_step, partial(load, group), self._device)
        except GroupLost as error:
            if group is not None:
                group.abandon()
            self.lose(error, replica.step)
            return
        except BaseException:
            if group is not None:
                group.close()
            raise
        self.entered = True
        standing = self._link.standing
        standing.generation, standing.ready, standing.group_lost = membership.generation, None, None
        self._take_up(Term(group, membership, membership.plan))

    def _meet(self, membership: Membership, rank: int) -> Group:
        if self._meeting is not None:
            return self._meeting.join(membership, rank, self.superseded)
        timeout_s = membership.collective_timeout_s
        return Group(membership.generation, rank, 1, self._device, None, timeout_s, self.superseded)

    def _place(self, membership: Membership) -> int | None:
        me = (self._environment.worker_id, self._environment.incarnation)
        places = [i for i, member in enumerate(membership.members) if (member.worker_id, member.incarnation) == me]
        return places[0] if places else None

    # --- plans ------------------------------------------------------------------------------------------------------

    def adopt_plan(self, version: int) -> None:
        """Run under another plan of this generation, as all have agreed."""
        plan = self._link.directives.plan(self._generation, version)
        if plan is None:
            raise RexError(f"agreed on plan {version}, which this worker no longer holds")
        self._take_up(replace(self.present, plan=plan))

    def acknowledge(self, plan: Plan, step: int) -> None:
        """Say, once per plan, which step is the first under it."""
        key = (plan.generation, plan.version)
        if key != self._acknowledged:
            self._acknowledged = key
            log.info("plan %d of generation %d: first step %d", plan.version, plan.generation, step)
            ack = Ack(generation=plan.generation, plan_version=plan.version, step=step)
            self._link.standing.ack = ack
            self._link.send(ack)

    def _take_up(self, term: Term) -> None:
        self.term = self.last = term
        plan, me = term.plan, self._environment.worker_id
        self._link.standing.plan_version = plan.version
        log.info(
            "plan %d: global batch %d, %d here, passes %d, learning rate x %.4g",
            plan.version,
            plan.global_batch,
            plan.local_batches[me],
            plan.passes_of(me),
            plan.learning_rate_factor,
        )

    # --- leaving ----------------------------------------------------------------------------------------------------

    def lose(self, error: GroupLost, step: int) -> None:
        """Give the group up; the next membership decides."""
        log.warning("group of generation %d lost after step %d: %s", self._generation, step, error)
        self.abandon()
        message = GroupLostMessage(generation=self._generation, step=step, message=str(error)[:500])
        self._link.standing.group_lost = message
        self._link.send(message)

    def depart(self, reason: Literal["drained", "stopped"], replica: Replica, code: int = 0) -> NoReturn:
        """Leave for good and end the process."""
        self.close()
        self._flush()
        progress = replica.progress
        self._link.send(Left(reason=reason, step=progress.step, samples=progress.samples))
        if not self._link.close(CLOSE_S):
            log.warning("the operator could not be told that this worker left (%s)", reason)
        log.info("left the job: %s, at step %d", reason, progress.step)
        raise Departed(code)

    def depart_together(self, replica: Replica) -> NoReturn:
        """Leave when everybody was told to go."""
        self.depart("drained", replica, _EXIT_SIGTERM if self._link.alone else 0)

    def leave_if_overdue(self, replica: Replica) -> None:
        """End the process when its grace after SIGTERM is over."""
        if self._leave_by is not None and time.monotonic() > self._leave_by:
            self.depart("drained", replica, _EXIT_SIGTERM)

    def abandon(self) -> None:
        """Drop the group, if there is one, and tell the others that it has no future."""
        if self.term is not None:
            self.term.group.abandon()
            self.term = None

    def close(self) -> None:
        """Drop the group, if there is one, without a word."""
        if self.term is not None:
            self.term.group.close()
            self.term = None
