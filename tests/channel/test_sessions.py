"""One session per worker: messages both ways, newer connections, older lives, and the end."""

from __future__ import annotations

import asyncio

import aiohttp

from rex_operator.channel import Identity
from rex_worker.protocol import Ready, encode
from tests.channel.wire import W0, close_code, hello, plan, read, serving

NEXT_LIFE = Identity("ns/job", "w0", "life-2")


async def test_a_worker_speaks_and_is_spoken_to() -> None:
    async with serving() as wire, wire.worker() as socket:
        await socket.send_str(encode(Ready(step=3)))
        await wire.log.until(lambda log: "received" in log.kinds())
        assert wire.log.events[-1] == ("received", W0, Ready(step=3))
        assert wire.server.send(W0, plan(1))
        assert await read(socket) == plan(1)


async def test_closed_is_told_once_when_the_worker_hangs_up() -> None:
    async with serving() as wire:
        async with wire.worker():
            pass
        await wire.log.until(lambda log: "closed" in log.kinds())
        assert wire.log.kinds() == ["opened", "closed"]
        assert not wire.server.send(W0, plan(1))


async def test_a_newer_connection_of_the_same_life_takes_over() -> None:
    async with serving() as wire, wire.worker() as old, wire.worker() as new:
        assert await close_code(old) == aiohttp.WSCloseCode.GOING_AWAY
        assert wire.server.send(W0, plan(1))
        assert await read(new) == plan(1)
        assert wire.log.kinds() == ["opened", "opened"], "it was never gone"
        assert wire.server.counters["replaced"] == 1


async def test_the_next_life_takes_over_and_the_older_is_refused() -> None:
    async with serving() as wire, wire.worker() as old, wire.worker(NEXT_LIFE):
        assert await close_code(old) == aiohttp.WSCloseCode.GOING_AWAY
        assert [(kind, who) for kind, who, _ in wire.log.events] == [
            ("opened", W0),
            ("closed", W0),
            ("opened", NEXT_LIFE),
        ]
        assert not wire.server.send(W0, plan(1)), "the message was for another life"
        async with wire.socket() as again:
            await again.send_str(encode(hello(W0)))
            assert await close_code(again) == aiohttp.WSCloseCode.POLICY_VIOLATION
        assert wire.log.kinds() == ["opened", "closed", "opened"]


async def test_workers_of_one_name_in_two_jobs_are_two() -> None:
    other = Identity("ns/other", "w0", "life-9")
    async with serving() as wire, wire.worker() as one, wire.worker(other, "token-2") as two:
        wire.server.send(W0, plan(1))
        wire.server.send(other, plan(2))
        assert await read(one) == plan(1)
        assert await read(two) == plan(2)


async def test_a_frozen_worker_is_noticed() -> None:
    """C-138: it answers no ping; nothing else tells it from one that is quiet."""
    async with serving(heartbeat_s=0.4) as wire, wire.worker(autoping=False):
        await wire.log.until(lambda log: "closed" in log.kinds())
        assert wire.server.counters["frozen"] == 1
        assert wire.server.counters["malformed"] == 0, "silence is no fault of form"


async def test_a_quiet_worker_that_answers_pings_stays() -> None:
    async with serving(heartbeat_s=0.05) as wire, wire.worker() as socket:
        pings = asyncio.Event()
        reading = asyncio.create_task(socket.receive())
        asyncio.get_running_loop().call_later(0.5, pings.set)
        await pings.wait()
        assert wire.log.kinds() == ["opened"]
        reading.cancel()


async def test_stop_hangs_up_on_everybody() -> None:
    async with serving() as wire, wire.worker() as socket:
        stopping = asyncio.create_task(wire.server.stop())
        assert await close_code(socket) == aiohttp.WSCloseCode.GOING_AWAY
        await stopping
