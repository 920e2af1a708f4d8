"""Whatever happens in whatever order, the promises of the job hold (I4, I7, I8, I10)."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rex_operator.jobs import Action, Ended, SavedState, Send, Target
from rex_worker.protocol import (
    Ack,
    Checkpointed,
    Drain,
    Failed,
    GroupLost,
    Leaving,
    Left,
    Membership,
    OutOfMemory,
    Plan,
    Ready,
    Stop,
    Up,
)
from tests.jobs.desk import Desk

NAMES = [f"w{i}" for i in range(6)]
names = st.sampled_from(NAMES)


class Job(RuleBasedStateMachine):
    """Random news about six worker names of several lives each, with restarts of the operator in between."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(checkpoint={"path": "job"}, planner={"policy": "rex"})
        self.lives = dict.fromkeys(NAMES, 0)
        self.target: set[str] = set()
        self.dead: set[tuple[str, str]] = set()
        self.open: set[tuple[str, str]] = set()
        self.generation = 0
        self.issued = 0
        self.end: Ended | None = None
        self.group: set[tuple[str, str]] = set()
        self.saved_numbers = (0, 0)

    @initialize()
    def start(self) -> None:
        self.take(self.set_target({"w0", "w1", "w2"}))

    # --- news ---

    @rule(wanted=st.sets(names, max_size=6))
    def new_target(self, wanted: set[str]) -> None:
        self.take(self.set_target(wanted))

    @rule(name=names)
    def connect(self, name: str) -> None:
        if self.key(name) in self.dead:
            return
        self.open.add(self.key(name))
        self.take(self.desk.hello(name, self.key(name)[1]))

    @rule(name=names)
    def reconnect_as_member(self, name: str) -> None:
        if self.key(name) in self.dead:
            return
        self.open.add(self.key(name))
        view = self.desk.coordinator.view()
        version = view.plan.version if view.plan else 0
        self.take(self.desk.hello(name, self.key(name)[1], generation=view.generation, version=version))

    @rule(name=names)
    def hang_up(self, name: str) -> None:
        self.open.discard(self.key(name))
        self.take(self.desk.coordinator.disconnected(*self.key(name), self.desk.now))

    @rule(name=names)
    def die(self, name: str) -> None:
        key = self.key(name)
        self.dead.add(key)
        self.open.discard(key)
        self.take(self.desk.coordinator.gone(*key, "killed", self.desk.now))

    @rule(name=names)
    def begin_another_life(self, name: str) -> None:
        self.lives[name] += 1
        self.take(self.set_target(self.target))

    @rule(name=names)
    def ready(self, name: str) -> None:
        self.say(name, Ready(step=3, total_samples=10_000))

    @rule(count=st.integers(1, 6))
    def many_ready(self, count: int) -> None:
        for name in NAMES[:count]:
            self.connect(name)
            self.ready(name)

    @rule(name=names, old=st.booleans(), step=st.integers(1, 50))
    def step(self, name: str, old: bool, step: int) -> None:
        plan = self.desk.coordinator.view().plan
        if plan is not None and name in plan.local_batches:
            version = max(1, plan.version - old)
            self.say(name, self.desk.steps(name, step, plan_version=version))

    @rule()
    def all_acknowledge(self) -> None:
        plan = self.desk.coordinator.view().plan
        for name in plan.local_batches if plan else ():
            self.say(name, Ack(generation=plan.generation, plan_version=plan.version, step=4))  # type: ignore[union-attr]

    @rule(
        name=names,
        message=st.sampled_from(
            [
                Leaving(),
                Left(reason="drained"),
                Failed(error="boom"),
                Checkpointed(generation=1, step=7, samples=70),
                OutOfMemory(generation=1, plan_version=1, local_batch=40),
                GroupLost(generation=1, step=4),
                GroupLost(generation=2, step=4),
                Ack(generation=999, plan_version=999, step=1),
            ]
        ),
    )
    def say_something(self, name: str, message: Up) -> None:
        self.say(name, message)

    @precondition(lambda self: self.generation > 2)
    @rule(name=names)
    def finish(self, name: str) -> None:
        self.say(name, Checkpointed(generation=1, step=9, samples=90, final=True))
        self.say(name, Left(reason="finished"))

    @rule(seconds=st.sampled_from([0.5, 1.5, 6.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.take(self.desk.wait(seconds))

    @rule()
    def operator_is_killed(self) -> None:
        text = self.desk.coordinator.saved().model_dump_json()
        if self.end is not None:
            return  # a shell does not start a job again that has ended
        later = Desk(SavedState.model_validate_json(text), checkpoint={"path": "job"}, planner={"policy": "rex"})
        self.desk, self.open = later, set()
        for key in sorted(self.dead):  # a shell first looks which lives there still are
            self.take(self.desk.coordinator.gone(*key, "killed", self.desk.now))
        self.take(self.set_target(self.target))

    # --- what must hold of every answer ---

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Ended):
                assert self.end is None, "terminal is final"
                self.end = action
        self.check_decision()
        for action in actions:
            if isinstance(action, Send):
                self.check_sent(action)

    def check_decision(self) -> None:
        """Each new generation and plan, at the moment it is decided."""
        group = self.desk.coordinator.group
        plan = group.plan
        if plan is None:
            return
        assert plan.version >= self.issued
        assert sum(plan.local_batches.values()) == plan.global_batch
        assert min(plan.local_batches.values()) >= 1
        assert self.desk.spec.batch.min <= plan.global_batch <= self.desk.spec.batch.max
        if plan.generation > self.generation:
            lives = {life.key for life in group.members}
            assert plan.version > self.issued
            assert not lives & self.dead
            assert len(lives) >= self.desk.spec.workers.min
            wanted = {self.key(name) for name in self.target}
            assert lives - self.group <= wanted, "only wanted lives are called in"
            self.group = lives
        self.generation, self.issued = plan.generation, plan.version

    def check_sent(self, send: Send) -> None:
        key = (send.worker_id, send.incarnation)
        assert key in self.open, "nothing is sent to a life that has no session"
        assert key not in self.dead
        match send.message:
            case Membership() as membership:
                assert self.end is None
                assert membership.generation <= self.generation
                assert membership.plan.version <= self.issued
            case Plan() as plan:
                assert self.end is None
                assert plan.generation <= self.generation
                assert plan.version <= self.issued
            case Drain():
                assert self.end is None
                assert key not in {self.key(name) for name in self.target}
            case Stop():
                assert self.end is not None

    @invariant()
    def numbers_grow(self) -> None:
        view = self.desk.coordinator.view()
        state = self.desk.coordinator.saved()
        assert (state.generation, state.plan_version) >= self.saved_numbers
        self.saved_numbers = (state.generation, state.plan_version)
        assert view.generation == state.generation
        if self.end is not None:
            assert view.phase == ("Succeeded" if self.end.success else "Failed")

    # --- helpers ---

    def key(self, name: str) -> tuple[str, str]:
        return name, f"{name}x{self.lives[name]}"

    def set_target(self, wanted: set[str]) -> list[Action]:
        self.target = wanted
        wish = {name: Target(self.key(name)[1], "a100", "a100") for name in sorted(wanted)}
        return self.desk.coordinator.set_target(wish, self.desk.now)

    def say(self, name: str, message: Up) -> None:
        self.take(self.desk.coordinator.message(*self.key(name), message, self.desk.now))


Job.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestPromises = Job.TestCase
