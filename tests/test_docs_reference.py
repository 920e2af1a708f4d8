"""The references are what the code says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("script", "page", "target"),
    [("reference.py", "rexjob.md", "crd"), ("worker_reference.py", "worker.md", "reference")],
)
def test_a_reference_is_generated(script: str, page: str, target: str) -> None:
    made = subprocess.run(
        [sys.executable, f"scripts/{script}"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
    )
    assert (ROOT / "docs" / "reference" / page).read_bytes() == made.stdout, f"run: make {target}"


def test_every_field_of_the_spec_says_what_it_is_for() -> None:
    page = (ROOT / "docs" / "reference" / "rexjob.md").read_text(encoding="utf-8")
    spec = page[: page.index("## status")]
    silent = [line for line in spec.splitlines() if line.startswith("| `") and line.endswith("|  |")]
    assert silent == []
