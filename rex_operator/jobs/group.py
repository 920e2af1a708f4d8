"""The newest decision about the group: who is in it, in which generation, under which plan.

There is always exactly one such decision, numbers only grow, and every message to a worker is made from it; so a worker
that missed something can be told again at any time.
"""

from __future__ import annotations

from collections.abc import Sequence

from rex_operator.jobs.life import Life
from rex_operator.jobs.roster import Roster
from rex_operator.jobs.saved import SavedMember, SavedState
from rex_operator.planning import PlanDraft
from rex_worker.protocol import Hello, Membership, Plan, SyncMode

COLLECTIVE_TIMEOUT_S = 60.0


class Group:
    """Members of the last generation (also those lost since), its membership message and the newest plan."""

    def __init__(self, sync_mode: SyncMode, generation: int = 0, version: int = 0) -> None:
        self.sync_mode: SyncMode = sync_mode
        self.generation, self.version = generation, version
        self.members: list[Life] = []
        self.plan: Plan | None = None
        self.draft: PlanDraft | None = None
        self.membership: Membership | None = None
        self.running_version = 0
        """Newest plan that all members were known to run."""
        self.strange = False
        """Workers told of a newer generation or plan: one that an operator before decided and could not save."""

    @classmethod
    def restored(cls, sync_mode: SyncMode, saved: SavedState, roster: Roster, now: float) -> Group:
        """The group that an earlier operator formed, and which trains on meanwhile."""
        group = cls(sync_mode, saved.generation, saved.plan_version)
        if saved.plan is None or not saved.members:
            return group
        for member in saved.members:
            life = roster.life(member.worker_id, member.incarnation)
            life.pool, life.device, life.max_local_batch = member.pool, member.device, member.max_local_batch
            life.memory_bytes = member.memory_bytes
            life.address, life.store_port = member.address, member.store_port
            life.joined, life.ready_at, life.changed_at, life.heard_at = True, now, now, now
            group.members.append(life)
        group.plan = saved.plan
        group.draft = PlanDraft(
            saved.plan.global_batch,
            saved.plan.accumulation,
            dict(saved.plan.local_batches),
            saved.plan.learning_rate_factor,
            saved.plan.warmup_samples,
            saved.plan.initial_batch,
            dict(saved.plan.passes),
        )
        group.membership = group._message(saved.checkpoint_step)
        return group

    def form(self, members: Sequence[Life], draft: PlanDraft, min_step: int) -> Membership:
        """Decide a new generation."""
        self.generation += 1
        self.members, self.strange = list(members), False
        self.replan(draft)
        self.membership = self._message(min_step)
        return self.membership

    def replan(self, draft: PlanDraft) -> Plan:
        """Decide a new plan within the generation."""
        self.version += 1
        self.draft = draft
        self.plan = Plan(
            generation=self.generation,
            version=self.version,
            global_batch=draft.global_batch,
            accumulation=draft.accumulation,
            local_batches=dict(draft.local_batches),
            learning_rate_factor=draft.learning_rate_factor,
            warmup_samples=draft.warmup_samples,
            initial_batch=draft.initial_batch,
            passes=dict(draft.passes),
            sync_mode=self.sync_mode,
        )
        return self.plan

    def learn(self, hello: Hello) -> None:
        """Never fall behind what a worker has already been told."""
        if hello.generation > self.generation or hello.plan_version > self.version:
            self.strange = True
            self.generation = max(self.generation, hello.generation)
            self.version = max(self.version, hello.plan_version)

    def missed(self, life: Life, hello: Hello) -> list[Membership | Plan]:
        """What a worker that reconnects must be told again; also a departing one that still has to leave the group."""
        if self.membership is None or self.plan is None or self.strange:
            return []
        inside = life in self.members
        if not inside and not (life.joined and life.departing):
            return []
        news: list[Membership | Plan] = []
        newest = hello.plan_version
        if hello.generation < self.generation:
            news.append(self.membership)
            newest = self.membership.plan.version
        if inside and self.plan.version > newest:
            news.append(self.plan)
        return news

    def unacked(self) -> list[Life]:
        """Members not yet known to run the newest plan."""
        return [life for life in self.members if self.plan is None or life.plan_version < self.plan.version]

    def saved_members(self) -> list[SavedMember]:
        """The members as they are kept."""
        return [
            SavedMember(
                worker_id=life.worker_id,
                incarnation=life.incarnation,
                address=life.address,
                store_port=life.store_port,
                pool=life.pool,
                device=life.device,
                max_local_batch=life.max_local_batch,
                memory_bytes=life.memory_bytes,
            )
            for life in self.members
        ]

    def _message(self, min_step: int) -> Membership:
        assert self.plan is not None  # noqa: S101 - both callers have just set it
        return Membership(
            generation=self.generation,
            members=[life.member() for life in self.members],
            plan=self.plan,
            collective_timeout_s=COLLECTIVE_TIMEOUT_S,
            min_step=min_step,
        )
