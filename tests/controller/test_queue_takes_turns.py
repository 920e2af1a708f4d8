"""One pass per key at a time, none lost, later and later after failures, namespaces in turn."""

from __future__ import annotations

import asyncio

import pytest

from rex_operator.controller.queue import Key, WorkQueue
from tests.controller.virtual import in_virtual_time

A, B = Key("a", "one"), Key("b", "two")


@in_virtual_time
async def test_many_events_are_one_pass() -> None:
    queue = WorkQueue()
    for _ in range(5):
        queue.add(A)
    assert await queue.get() == A
    assert len(queue) == 0


@in_virtual_time
async def test_an_event_during_a_pass_makes_one_more() -> None:
    queue = WorkQueue()
    queue.add(A)
    key = await queue.get()
    queue.add(A)
    queue.add(A)
    assert len(queue) == 0
    queue.done(key)
    assert await queue.get() == A
    queue.done(A)
    assert len(queue) == 0


@in_virtual_time
async def test_failures_wait_longer_each_time() -> None:
    queue = WorkQueue()
    queue.add(A)
    delays = []
    for _ in range(10):
        await queue.get()
        delays.append(queue.failed(A))
    assert all(0.4 <= delay <= 72 for delay in delays)
    assert delays[0] < 1 < delays[4] < delays[7]
    await queue.get()
    queue.done(A)
    queue.add(A)
    await queue.get()
    assert queue.failed(A) < 1


@in_virtual_time
async def test_the_earliest_appointment_stands() -> None:
    queue = WorkQueue()
    loop = asyncio.get_running_loop()
    start = loop.time()
    queue.add_after(A, 5)
    queue.add_after(A, 60)
    queue.add_after(A, 2)
    await queue.get()
    assert loop.time() - start == pytest.approx(2, abs=0.1)


@in_virtual_time
async def test_c_214_a_tenant_with_many_jobs_does_not_starve_one_with_one() -> None:
    queue = WorkQueue()
    for number in range(100):
        queue.add(Key("a", f"job{number}"))
    queue.add(B)
    first = [await queue.get(), await queue.get()]
    assert B in first


@in_virtual_time
async def test_a_forgotten_key_has_no_appointments() -> None:
    queue = WorkQueue()
    queue.add_after(A, 1)
    queue.forget(A)
    await asyncio.sleep(5)
    assert len(queue) == 0
