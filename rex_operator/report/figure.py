"""What a plot of the report is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One plot: ``takeaway`` says in words what it shows, for those who do not see it and those who do."""

    id: str
    title: str
    takeaway: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    wide: bool = True
    height: int = 300
