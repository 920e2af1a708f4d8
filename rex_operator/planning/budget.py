"""How strict must the next trial be, so that a job's many trials do not add up to false changes?

A level of .05 holds for one trial; a job makes forty. The levels of all its trials follow LORD++ (Ramdas, Yang,
Wainwright & Jordan 2017): among the changes that are kept, at most a share ``alpha`` is expected to be false, however
many trials there are. Each trial spends from a budget, each change that is kept earns some back, so that a job in which
trials help stays bold and one in which they do not grows strict. No trial gets a level above ``alpha``.

Ours: half of alpha to begin with, and shares of it that fall with the trial's number to the power 1.6, as Ramdas,
Zrnic, Wainwright & Jordan (2018) have them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rex_operator.planning.types import Record

_POWER = 1.6
_ZETA = 2.2857656
"""Sum of k^-1.6 over all k."""
MAX_KEPT = 64
"""Kept changes that are remembered; what older ones earned is as good as spent, and to forget it errs to be strict."""


class BudgetState(Record):
    """What is kept of a budget."""

    judged: int = 0
    """Trials that took a look."""
    kept: Annotated[tuple[int, ...], Field(max_length=MAX_KEPT)] = ()
    """Numbers of those that ended in a change: the first ever, then the latest."""
    spent: float = 0.0


class ErrorBudget:
    """One job's budget for false changes, over all its lives."""

    def __init__(self, alpha: float, saved: BudgetState | None = None) -> None:
        state = saved or BudgetState()
        self._alpha = alpha
        self._judged, self._kept, self._spent = state.judged, list(state.kept), state.spent

    @property
    def level(self) -> float:
        """One-sided level of the next trial, over all its looks together."""
        number, first = self._judged + 1, self._alpha / 2
        level = first * _share(number)
        if self._kept:
            level += (self._alpha - first) * _share(number - self._kept[0])
            level += self._alpha * sum(_share(number - kept) for kept in self._kept[1:])
        return level

    @property
    def spent(self) -> float:
        """Sum of the levels of all trials so far: no more false changes than that are to be expected."""
        return self._spent

    def spend(self) -> float:
        """Count a trial that takes its first look; return its level."""
        level = self.level
        self._judged += 1
        self._spent += level
        return level

    def earn(self) -> None:
        """The trial counted last ended in a change."""
        if len(self._kept) == MAX_KEPT:
            del self._kept[1]
        self._kept.append(self._judged)

    def state(self) -> BudgetState:
        """Return what is to be kept."""
        return BudgetState(judged=self._judged, kept=tuple(self._kept), spent=self._spent)


def _share(number: int) -> float:
    return float(number**-_POWER) / _ZETA
