"""``rex policies`` lists every policy with its paper; the page about the planner has the same table."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from rex_operator.api.spec import PolicyName
from rex_operator.cli.app import app
from rex_operator.planning.policies import POLICIES

ROOT = Path(__file__).resolve().parents[2]


def rex(*words: str, width: int = 80) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": str(width)}).invoke(app, ["policies", *words])
    return result.exit_code, result.output


def words(text: str) -> str:
    return " ".join(text.split())


def test_every_policy_that_a_job_may_name_is_there() -> None:
    assert set(POLICIES) == set(get_args(PolicyName))


@pytest.mark.parametrize("width", [80, 120])
def test_all_are_listed_with_their_papers(width: int) -> None:
    code, output = rex(width=width)
    assert code == 0
    assert max(len(line) for line in output.splitlines()) <= width
    for policy in POLICIES.values():
        assert policy.about.name in output
        for text in (policy.about.reference, policy.about.rule, policy.about.ours):
            assert words(text) in words(output)


@pytest.mark.parametrize("name", POLICIES)
def test_one_in_detail_tells_what_it_is_exempt_from_and_why(name: str) -> None:
    code, output = rex(name)
    assert code == 0
    assert f"spec.planner.policy: {name}" in output
    for check, reason in POLICIES[name].about.exempt.items():
        assert words(f"{check}: {reason}") in words(output)


def test_an_unknown_one_is_refused_with_the_known_ones() -> None:
    code, output = rex("rx")
    assert code == 2
    assert output.startswith("error: no planning policy is called 'rx'")
    assert "always-accept" in output


def test_as_json() -> None:
    entries = json.loads(rex("--json")[1])
    assert [entry["name"] for entry in entries] == list(POLICIES)
    assert json.loads(rex("even", "--json")[1])["changes"] == []


def test_the_page_has_the_same_table(tmp_path: Path) -> None:
    copy = tmp_path / "planner.md"
    shutil.copy(ROOT / "docs" / "planner.md", copy)
    script = [sys.executable, str(ROOT / "scripts" / "policy_table.py"), str(copy)]
    subprocess.run(script, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, check=True)
    assert copy.read_bytes() == (ROOT / "docs" / "planner.md").read_bytes(), "run: make reference"
