"""Sums of floating-point numbers that do not depend on the order of their terms.

Ordinary sums round after each addition, so that another order, or another split over workers, ends in other last
digits. Here a sum is kept exactly, as a few floats that do not overlap, and rounded once, at the end. The idea is
Shewchuk's ("Adaptive precision floating-point arithmetic", 1997); Python's ``math.fsum`` does the work.
"""

from __future__ import annotations

import math

MAX_PARTS = 41
"""A float64's exponents span 2098 bits, and each part takes at least 53 of them; one more for what is not finite."""
_FEW = 256


class ExactSum:
    """The exact sum of the numbers added; ``nan`` and infinities make it what they make of any sum."""

    def __init__(self) -> None:
        self._terms: list[float] = []
        self._strange = 0.0

    def add(self, number: float) -> None:
        """Add a number."""
        if not math.isfinite(number):
            self._strange += number
            return
        self._terms.append(number)
        if len(self._terms) > _FEW:
            self._terms = self._distilled()

    def parts(self) -> list[float]:
        """At most ``MAX_PARTS`` numbers with the same exact sum."""
        return self._distilled() + ([self._strange] if self._strange != 0.0 else [])

    def value(self) -> float:
        """The sum, rounded once."""
        return math.fsum(self._terms) if self._strange == 0.0 else self._strange

    def _distilled(self) -> list[float]:
        """Take the sum's leading 53 bits away, again and again, until nothing is left."""
        rest, parts = list(self._terms), []
        while (head := math.fsum(rest)) != 0.0:
            parts.append(head)
            rest.append(-head)
        return parts
