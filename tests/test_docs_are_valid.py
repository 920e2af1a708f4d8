"""What the documents show can be done: links lead somewhere, manifests are valid, commands and code exist."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from rex_operator.api import RexJob
from rex_operator.cli.app import app

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
EXAMPLES = sorted((ROOT / "examples").rglob("rexjob*.yaml"))
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
each_page = pytest.mark.parametrize("page", PAGES, ids=NAMES)


def blocks(page: Path, language: str) -> Iterator[str]:
    """The fenced code blocks of a language."""
    yield from re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def commands(page: Path) -> Iterator[str]:
    """Command lines of the shell blocks, and commands in the text."""
    for block in blocks(page, "sh"):
        yield from (line.split("#")[0].strip() for line in block.splitlines())
    yield from re.findall(r"`([^`\n]+)`", prose(page))


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    inside = [link.split("#")[0] for link in links if not link.startswith(("https://", "#"))]
    missing = [link for link in inside if link and not (page.parent / link).exists()]
    assert missing == []


@each_page
def test_manifests_are_valid_jobs(page: Path) -> None:
    for block in blocks(page, "yaml"):
        manifest = yaml.safe_load(block)
        if isinstance(manifest, dict) and manifest.get("kind") == "RexJob":
            RexJob.from_manifest(manifest)


@pytest.mark.parametrize("manifest", EXAMPLES, ids=lambda path: path.parent.name)
def test_examples_are_valid_jobs(manifest: Path) -> None:
    job = RexJob.from_manifest(yaml.safe_load(manifest.read_text(encoding="utf-8")))
    script = next(word for word in job.spec.trainer()["command"] if word.endswith(".py"))
    assert (ROOT / script).is_file()


@each_page
def test_make_targets_exist(page: Path) -> None:
    known = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {match[1] for line in commands(page) if (match := re.match(r"make ([a-z][a-z0-9-]*)", line))}
    assert named <= known


@each_page
def test_rex_commands_and_their_options_exist(page: Path) -> None:
    runner = CliRunner()
    for line in commands(page):
        match = re.match(r"(?:\.venv/bin/)?rex ([a-z]+)\b(.*)", line)
        if match is None or match[1] == "operator":
            continue
        shown = runner.invoke(app, [match[1], "--help"], terminal_width=200)
        assert shown.exit_code == 0, f"{line}: no such command"
        for option in re.findall(r"--[a-z-]+", match[2]):
            assert option in re.sub(r"\x1b\[[0-9;]*m", "", shown.output), f"{line}: no such option"


@each_page
def test_both_sides_of_a_diff_are_python(page: Path) -> None:
    for block in blocks(page, "diff"):
        for side, other in (("+", "-"), ("-", "+")):
            code = "\n".join(line[1:] for line in block.splitlines() if line[:1] != other)
            ast.parse(textwrap.dedent(code), filename=f"{page.name} ({side})")


def test_every_page_is_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or not page.exists():
            continue
        reached.add(page)
        for link in re.findall(r"\]\(([^)\s#]+)", page.read_text(encoding="utf-8")):
            target = (page.parent / link).resolve()
            waiting += [target] if target.suffix == ".md" else sorted(target.glob("*.md")) if target.is_dir() else []
    assert set(PAGES) - reached == set()
