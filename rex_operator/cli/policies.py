"""``rex policies``: which planning policies there are, whose they are, and what of each is not its paper's."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rex_operator.planning.policies import POLICIES, About


def show_policies(name: str | None, *, as_json: bool, console: Console | None = None) -> str:
    """Print all policies, or the one of that name; return what is wrong (empty: nothing)."""
    if name is not None and name not in POLICIES:
        return f"no planning policy is called {name!r}; there are {', '.join(POLICIES)}"
    chosen = [policy.about for policy in POLICIES.values() if name in (None, policy.about.name)]
    out = console or Console(highlight=False)
    if as_json:
        rows = [entry(about) for about in chosen]
        out.print(Text(json.dumps(rows if name is None else rows[0], indent=2)), soft_wrap=True)
        return ""
    for number, about in enumerate(chosen):
        if number:
            out.print()
        _show(out, about, whole=name is not None)
    return ""


def entry(about: About) -> dict[str, Any]:
    """Return a policy as JSON."""
    return {
        "name": about.name,
        "title": about.title,
        "reference": about.reference,
        "changes": list(about.changes),
        "rule": about.rule,
        "ours": about.ours,
        "exempt": dict(about.exempt),
    }


def changes(about: About) -> str:
    """Say what a policy changes while a job runs."""
    return " and ".join(about.changes) or "nothing"


def _show(out: Console, about: About, *, whole: bool) -> None:
    out.print(Text.assemble((about.name, "bold"), f"  {about.title}; changes {changes(about)}"))
    grid = Table.grid(padding=(0, 2))
    grid.add_row("  rule", Text(about.rule))
    grid.add_row("  paper", Text(about.reference))
    grid.add_row("  ours", Text(about.ours or "nothing; all of it is published"))
    if about.exempt and not whole:
        grid.add_row("  exempt", f"from {', '.join(about.exempt)}")
    for check, reason in about.exempt.items() if whole else ():
        grid.add_row("  exempt", Text(f"from {check}: {reason}"))
    if whole:
        grid.add_row("  use", f"spec.planner.policy: {about.name}")
    out.print(grid)
