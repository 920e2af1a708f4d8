"""Virtual time: a test's waits take no time at all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any

import looptime


def in_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run an async test in a loop whose clock jumps to the next appointment."""

    @functools.wraps(test)
    def run() -> None:
        loop = looptime.new_event_loop()
        try:
            loop.run_until_complete(test())
        finally:
            loop.close()

    return run
