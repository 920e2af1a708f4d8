"""Searches of the planner in other processes, so that the event loop never waits for one.

A search that hangs must not hold up the searches of other jobs, so each has a time limit, and a process that overran it
is ended and replaced. Searches are pure: a request that was lost is simply asked again.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from rex_operator.planning import SearchRequest, SearchResult, run_search

logger = logging.getLogger(__name__)

TIME_LIMIT_S = 60.0


class SearchPool:
    """A few processes for ``run_search``."""

    def __init__(self, processes: int = 1, time_limit_s: float = TIME_LIMIT_S) -> None:
        self._processes, self._time_limit_s = processes, time_limit_s
        self._pool: ProcessPoolExecutor | None = None
        self._turn = asyncio.Semaphore(processes)

    async def run(self, request: SearchRequest) -> SearchResult | None:
        """The result, or None when the search failed or took too long."""
        async with self._turn:
            try:
                async with asyncio.timeout(self._time_limit_s):
                    return await asyncio.wrap_future(self._submit(request))
            except TimeoutError:
                logger.error("A search took longer than %g s and was ended", self._time_limit_s)
                self.close()
            except BrokenProcessPool:
                logger.error("The search process died; the next search gets a new one")
                self.close()
            except Exception:
                logger.exception("A search failed")
        return None

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        pool, self._pool = self._pool, None
        if pool is not None:
            processes = list((pool._processes or {}).values())  # before Python 3.14 there is no public way
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.kill()

    def _submit(self, request: SearchRequest) -> Future[SearchResult]:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._processes, mp_context=context)
        return self._pool.submit(run_search, request)
