"""A coordinator with its surroundings played by the test: a clock, workers that say what they should, a mail room."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from rex_operator.api import RexJob, RexJobSpec
from rex_operator.jobs import Action, Coordinator, Ended, Save, SavedState, Send, Target
from rex_worker.protocol import Ack, Down, Hello, Left, Membership, Plan, Ready, StepReport, Steps, Up


def make_spec(**changes: Any) -> RexJobSpec:
    spec: dict[str, Any] = {
        "workers": {"min": 2, "max": 8},
        "pools": [{"name": "a100", "maxWorkers": 8}, {"name": "t4", "maxWorkers": 8}],
        "template": {"spec": {"containers": [{"name": "trainer", "image": "x", "command": ["python", "t.py"]}]}},
        "batch": {"initial": 64, "min": 8, "max": 512},
        "planner": {"policy": "even"},
    }
    spec.update(changes)
    manifest = {"apiVersion": "rex.dev/v1alpha1", "kind": "RexJob", "metadata": {"name": "job"}, "spec": spec}
    return RexJob.from_manifest(manifest).spec


class Desk:
    """Drives one coordinator. Every worker ``wN`` has incarnation ``iN``, ``wN-M`` ``iN-dM``, unless said otherwise."""

    def __init__(self, saved: SavedState | None = None, **spec: Any) -> None:
        self.now = 0.0
        self.spec = make_spec(**spec)
        self.coordinator = Coordinator("ns/job", self.spec, np.random.default_rng(0), self.now, saved)
        self.actions: list[Action] = []
        """All actions so far."""

    # --- what the world does ---

    def target(self, *names: str, pool: str = "a100", **incarnations: str) -> list[Action]:
        wish = {name: Target(incarnations.get(name, incarnation(name)), pool, pool) for name in names}
        return self._keep(self.coordinator.set_target(wish, self.now))

    def hello(
        self,
        name: str,
        life: str = "",
        generation: int = 0,
        version: int = 0,
        step: int = 0,
        exits: tuple[int, ...] = (),
    ) -> list[Action]:
        life = life or incarnation(name)
        hello = Hello(
            job="ns/job",
            worker_id=name,
            incarnation=life,
            device="a100",
            address="127.0.0.1",
            store_port=20_000 + int(name[1:].replace("-", "")),
            generation=generation,
            plan_version=version,
            step=step,
            exits=list(exits),
        )
        return self._keep(self.coordinator.connected(name, life, hello, self.now))

    def say(self, name: str, message: Up, life: str = "") -> list[Action]:
        return self._keep(self.coordinator.message(name, life or incarnation(name), message, self.now))

    def ready(self, *names: str, total: int = 0) -> list[Action]:
        done: list[Action] = []
        for name in names:
            done += self.hello(name)
            done += self.say(name, Ready(total_samples=total))
        return done

    def hang_up(self, name: str) -> list[Action]:
        return self._keep(self.coordinator.disconnected(name, incarnation(name), self.now))

    def gone(self, name: str, reason: str = "exit code 137") -> list[Action]:
        return self._keep(self.coordinator.gone(name, incarnation(name), reason, self.now))

    def wait(self, seconds: float) -> list[Action]:
        done: list[Action] = []
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.5)
            done += self.coordinator.tick(self.now)
        return self._keep(done)

    def switch(self, *names: str, step: int = 1) -> list[Action]:
        """The workers named say that they run the newest plan from ``step`` on."""
        plan = self.plan
        done: list[Action] = []
        for name in names:
            done += self.say(name, Ack(generation=plan.generation, plan_version=plan.version, step=step))
        return done

    def run(self, *names: str, step: int) -> list[Action]:
        """The workers named report one step under the newest plan."""
        done: list[Action] = []
        for name in names:
            done += self.say(name, self.steps(name, step))
        return done

    def steps(self, name: str, step: int, **changes: Any) -> Steps:
        plan = self.plan
        values: dict[str, Any] = {
            "step": step,
            "plan_version": plan.version,
            "samples": step * plan.global_batch,
            "local_batch": plan.local_batches[name],
            "compute_s": 0.05,
            "wait_s": 0.01,
            "step_s": 0.06,
            "loss": 1.0,
        }
        return Steps(generation=plan.generation, steps=[StepReport(**(values | changes))])

    def finish(self, *names: str) -> list[Action]:
        done: list[Action] = []
        for name in names:
            done += self.say(name, Left(reason="finished"))
        return done

    # --- what can be seen ---

    @property
    def plan(self) -> Plan:
        plan = self.coordinator.view().plan
        assert plan is not None
        return plan

    @property
    def members(self) -> list[str]:
        return [row.worker_id for row in self._by_rank()]

    @property
    def phase(self) -> str:
        return self.coordinator.view().phase

    def _by_rank(self) -> list[Any]:
        rows = [row for row in self.coordinator.view().workers if row.rank is not None]
        return sorted(rows, key=lambda row: row.rank)

    def _keep(self, actions: list[Action]) -> list[Action]:
        self.actions += actions
        return actions


def incarnation(name: str) -> str:
    return f"i{name[1:].replace('-', '-d')}"


def running(*names: str, **spec: Any) -> Desk:
    """A desk whose workers form generation 1 and run its plan."""
    desk = Desk(**spec)
    desk.target(*names)
    desk.ready(*names)
    desk.switch(*names)
    return desk


def sent(actions: Iterable[Action], kind: type[Down] | None = None) -> dict[str, list[Any]]:
    """Messages by worker."""
    mail: dict[str, list[Any]] = {}
    for action in actions:
        if isinstance(action, Send) and (kind is None or isinstance(action.message, kind)):
            mail.setdefault(action.worker_id, []).append(action.message)
    return mail


def memberships(actions: Iterable[Action]) -> list[Membership]:
    """Different memberships, in order."""
    found: dict[int, Membership] = {}
    for action in actions:
        if isinstance(action, Send) and isinstance(action.message, Membership):
            found[action.message.generation] = action.message
    return list(found.values())


def ended(actions: Iterable[Action]) -> Ended | None:
    return next((action for action in actions if isinstance(action, Ended)), None)


def saves(actions: Iterable[Action]) -> bool:
    return any(isinstance(action, Save) for action in actions)
