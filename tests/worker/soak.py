"""The storm for as long as you like: rounds of random elastic events, each round checked to the last sample.

    python -m tests.worker.soak --minutes 30 --seed 1

Each round starts a new job, lets 40 events happen and compares its end with the plain loop's. It stops at the first
fault, with the seed of the round, the events so far, and the workers' logs. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.worker.ledger import Ledgers
from tests.worker.operator_double import Nursery, Operator, serving
from tests.worker.storm import Storm

EVENTS = 40


async def weather(nursery: Nursery, seed: int) -> Counter[str]:
    """Run one round; returns how often each kind of event happened."""
    with tempfile.TemporaryDirectory(prefix="rex-soak-") as folder:
        rex = Operator(Path(folder), nursery)
        async with serving(rex):
            storm = Storm(rex, Ledgers(Path(folder)), seed)
            try:
                await storm.begin()
                for _ in range(EVENTS):
                    await storm.strike()
                await storm.end()
            except BaseException:
                print(f"seed {seed}: after {', '.join(storm.told)}", flush=True)
                raise
            finally:
                await rex.clear()
    return Counter(storm.told)


def main() -> None:
    """Run rounds until the time is over."""
    parser = argparse.ArgumentParser(description="random elastic events on real worker processes, checked")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1, help="of the first round; each next round adds 1")
    arguments = parser.parse_args()
    nursery, begun, rounds, told = Nursery(), time.monotonic(), 0, Counter[str]()
    while time.monotonic() - begun < 60 * arguments.minutes:
        told += asyncio.run(weather(nursery, arguments.seed + rounds))
        rounds += 1
        print(f"round {rounds}: {sum(told.values())} events, {time.monotonic() - begun:.0f} s, no fault", flush=True)
    nursery.close()
    minutes = round((time.monotonic() - begun) / 60, 1)
    print(
        json.dumps({"rounds": rounds, "events": dict(sorted(told.items())), "minutes": minutes, "lost_or_doubled": 0})
    )


if __name__ == "__main__":
    main()
