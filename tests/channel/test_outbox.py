"""What waits for a worker is bounded, and the newest decision is never lost."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rex_operator.channel.outbox import Outbox
from rex_worker.protocol import Down, Drain, Member, Membership, Stop
from tests.channel.wire import plan


def membership(generation: int, version: int) -> Membership:
    member = Member(worker_id="w0", incarnation="i", address="127.0.0.1", store_port=1)
    return Membership(generation=generation, members=[member], plan=plan(version, generation))


async def drain(outbox: Outbox) -> list[Down]:
    return [await outbox.get() for _ in range(len(outbox))]


async def test_a_later_plan_replaces_the_earlier() -> None:
    outbox = Outbox()
    for version in range(1, 1000):
        outbox.put(plan(version))
    assert await drain(outbox) == [plan(999)]
    assert outbox.replaced == 998


async def test_a_membership_makes_plans_of_the_generation_before_meaningless() -> None:
    outbox = Outbox()
    outbox.put(plan(4, generation=1))
    outbox.put(membership(2, 5))
    outbox.put(plan(6, generation=2))
    assert await drain(outbox) == [membership(2, 5), plan(6, generation=2)]


@given(st.lists(st.sampled_from(["join", "plan", "drain", "stop"]), max_size=50))
async def test_the_newest_of_each_kind_comes_through_in_order(kinds: list[str]) -> None:
    outbox = Outbox()
    generation = 1
    newest: dict[str, Down] = {}
    for version, kind in enumerate(kinds, 1):
        message: Any
        match kind:
            case "join":
                generation += 1
                message = membership(generation, version)
                newest.pop("Plan", None)
            case "plan":
                message = plan(version, generation)
            case "drain":
                message = Drain(reason=str(version))
            case _:
                message = Stop(reason=str(version))
        newest.pop(message.kind, None)
        newest[message.kind] = message
        outbox.put(message)
        assert len(outbox) <= 4
    assert await drain(outbox) == list(newest.values())
