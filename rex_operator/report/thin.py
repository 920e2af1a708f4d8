"""A series of any length in bounded memory.

A run of a day writes half a million steps; a page that draws them all opens in nobody's browser. So a series keeps
every n-th point, and each time it is full it forgets every second one and doubles n: what is left is evenly spread over
the whole run, however long it becomes, and the newest point is never lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Thinned(Generic[T]):
    """An append-only series that holds at most ``limit`` evenly spread points, and always the newest one."""

    def __init__(self, limit: int) -> None:
        if limit < 2:
            raise ValueError(f"a limit of {limit} points draws no line; give at least 2")
        self._limit = limit
        self._stride = 1
        self._kept: list[T] = []
        self._newest: list[T] = []
        self.seen = 0

    def append(self, point: T) -> None:
        """Take the next point; keep it when its turn comes."""
        if self.seen % self._stride == 0 and len(self._kept) == self._limit - 1:
            self._kept = self._kept[::2]
            self._stride *= 2
        turn = self.seen % self._stride == 0
        if turn:
            self._kept.append(point)
        self._newest = [] if turn else [point]
        self.seen += 1

    def __iter__(self) -> Iterator[T]:
        yield from self._kept
        yield from self._newest

    def __len__(self) -> int:
        return len(self._kept) + len(self._newest)
