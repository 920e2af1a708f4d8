"""From the shares that a rule asks for to shares that can be run.

A published rule ends in fractions that need not sum to the batch and know no ceilings. Rounding each one by itself
loses samples, and cutting one at a time depends on the order. Here it is done once for all rules: the nearest point
(least squares) with the right sum and within the bounds, and then whole numbers by largest remainder.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rex_operator.planning.curves import Array
from rex_operator.planning.split import Whole, even_split

_HALVINGS = 100


def settle(
    wanted: Mapping[str, float],
    ceilings: Mapping[str, int | None],
    batch: int,
    accumulation: int = 1,
    min_share: int = 1,
) -> dict[str, int]:
    """Return whole shares next to the ``wanted`` ones (finite, samples per step) that sum to ``batch``.

    ``ceilings`` (samples per micro-batch, None: none) names the workers and bounds their shares as in `even_split`.
    Raises ``CannotPlan`` when no shares satisfy the bounds.
    """
    even = even_split(ceilings, batch, accumulation, min_share)
    least = min_share * accumulation if batch >= min_share * accumulation * len(even) else 1
    high = np.array([batch if cap is None else cap * accumulation for cap in ceilings.values()], dtype=np.float64)
    high = np.maximum(np.minimum(high, batch), least)
    target = np.array([wanted[worker] for worker in ceilings], dtype=np.float64)
    shares = _whole(_project(target, batch, float(least), high), batch, least, high)
    return dict(zip(ceilings, shares.tolist(), strict=True))


def _project(target: Array, batch: int, least: float, high: Array) -> Array:
    """Return the point nearest to ``target`` with sum ``batch``: all move by the same amount, then are cut."""
    down, up = least - float(target.max()), float((high - target).max())
    for _ in range(_HALVINGS):
        middle = (down + up) / 2
        if np.clip(target + middle, least, high).sum() >= batch:
            up = middle
        else:
            down = middle
    return np.clip(target + up, least, high)


def _whole(exact: Array, batch: int, least: int, high: Array) -> Whole:
    """Round to whole numbers with the sum ``batch``; among equal remainders the first ones win."""
    shares = np.floor(exact + 1e-6).astype(np.int64)
    while (missing := batch - int(shares.sum())) != 0:
        remainder = exact - shares
        if missing > 0:
            room = np.flatnonzero(shares < high)
            shares[room[np.argsort(-remainder[room], kind="stable")][:missing]] += 1
        else:
            room = np.flatnonzero(shares > least)
            shares[room[np.argsort(remainder[room], kind="stable")][:-missing]] -= 1
    return shares
