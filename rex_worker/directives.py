"""What the operator last said, shared between the channel's thread and the training thread.

Messages arrive at any moment, repeated or late; training looks at them only at step boundaries. Memberships and
plans are kept by number, a few of each, because the group may agree on one while a newer one is already arriving.
"""

from __future__ import annotations

import threading

from rex_worker.protocol import Down, Drain, Membership, Plan, Stop

_KEPT = 16


class Directives:
    """The operator's word. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._memberships: dict[int, Membership] = {}
        self._plans: dict[tuple[int, int], Plan] = {}
        self._stop: Stop | None = None
        self._drain: Drain | None = None

    def receive(self, message: Down) -> None:
        """Take in a message; repeats change nothing."""
        with self._changed:
            match message:
                case Membership():
                    self._memberships[message.generation] = message
                    self._keep(message.plan)
                    for old in sorted(self._memberships)[:-_KEPT]:
                        del self._memberships[old]
                case Plan():
                    self._keep(message)
                case Stop():
                    self._stop = message
                case Drain():
                    self._drain = message
            self._changed.notify_all()

    def _keep(self, plan: Plan) -> None:
        self._plans[plan.generation, plan.version] = plan
        for old in sorted(self._plans)[:-_KEPT]:
            del self._plans[old]

    @property
    def stop(self) -> Stop | None:
        """The order to end the training, if it came."""
        return self._stop

    @property
    def drain(self) -> Drain | None:
        """The order to leave the group, if it came."""
        return self._drain

    def newest_generation(self) -> int:
        """Number of the newest membership held, 0 for none."""
        with self._changed:
            return max(self._memberships, default=0)

    def membership(self, generation: int) -> Membership | None:
        """The membership of that generation, if it is held."""
        with self._changed:
            return self._memberships.get(generation)

    def newest_version(self, generation: int) -> int:
        """Version of the newest plan held for that generation, 0 for none."""
        with self._changed:
            return max((version for g, version in self._plans if g == generation), default=0)

    def plan(self, generation: int, version: int) -> Plan | None:
        """That plan, if it is held."""
        with self._changed:
            return self._plans.get((generation, version))

    def await_change(self, after: int, timeout: float) -> None:
        """Wait until there is a membership newer than ``after``, or Stop or Drain; at most ``timeout`` seconds."""

        def changed() -> bool:
            return bool(max(self._memberships, default=0) > after or self._stop or self._drain)

        with self._changed:
            self._changed.wait_for(changed, timeout)
