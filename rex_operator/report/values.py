"""Values of a record as they should be, or nothing: what is written there is not trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def number(value: Any) -> float | None:
    """Return a finite number, or None for anything else (NaN, infinity, text, bool)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def whole(value: Any) -> int | None:
    """Return an integer, or None for anything else."""
    result = number(value)
    return None if result is None else int(result)


def numbers(value: Any) -> dict[str, float]:
    """Return the entries of an object whose values are finite numbers."""
    if not isinstance(value, Mapping):
        return {}
    found = ((str(key)[:63], number(entry)) for key, entry in value.items())
    return {key: entry for key, entry in found if entry is not None}


def text(value: Any) -> str:
    """Return a string of bounded length."""
    return "" if value is None else str(value)[:2048]
