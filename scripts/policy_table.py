"""Writes the table of planning policies into a page, between its two marks: ``policy_table.py docs/planner.md``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from rex_operator.cli.policies import changes
from rex_operator.planning.policies import POLICIES

BEGIN, END = "<!-- policies: written by make reference -->\n", "<!-- end of policies -->\n"


def table() -> str:
    """The table as Markdown."""
    rows = ["| name | paper | changes | rule | what is ours |", "|---|---|---|---|---|"]
    for about in (policy.about for policy in POLICIES.values()):
        cells = (f"`{about.name}`", about.reference, changes(about), about.rule, about.ours or "nothing")
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def main(page: Path) -> None:
    """Replace what is between the marks."""
    text = page.read_text(encoding="utf-8")
    pattern = re.compile(f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", re.DOTALL)
    if not pattern.search(text):
        sys.exit(f"{page}: the marks of the table are missing")
    page.write_text(pattern.sub(lambda _: table(), text, count=1), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
