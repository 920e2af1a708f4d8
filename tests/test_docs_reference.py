"""The reference of the RexJob is what the models say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_reference_is_generated_from_the_models() -> None:
    made = subprocess.run(
        [sys.executable, "scripts/reference.py"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
    )
    page = (ROOT / "docs" / "reference" / "rexjob.md").read_bytes()
    assert page == made.stdout, "run: make crd"


def test_every_field_of_the_spec_says_what_it_is_for() -> None:
    page = (ROOT / "docs" / "reference" / "rexjob.md").read_text(encoding="utf-8")
    spec = page[: page.index("## status")]
    silent = [line for line in spec.splitlines() if line.startswith("| `") and line.endswith("|  |")]
    assert silent == []
