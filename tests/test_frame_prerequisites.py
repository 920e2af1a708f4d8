"""What a machine lacks is named in a sentence each, all at once, before anything is done."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BASICS = ("awk", "bash", "df", "dirname", "env", "grep", "head", "id", "sed", "tail", "tr", "uname")


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with the basic programs of a system and nothing else, to be the whole PATH."""
    for name in BASICS:
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    return tmp_path


def program(tools: Path, name: str, script: str) -> Path:
    path = tools / name
    path.write_text(f"#!{tools / 'bash'}\n{script}\n")
    path.chmod(0o755)
    return path


def lacks(tools: Path, python: str, purpose: str, **env: str) -> list[str]:
    done = subprocess.run(
        [tools / "bash", ROOT / "scripts" / "prerequisites", python, purpose],
        env={"PATH": str(tools), **env},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
    assert (done.returncode == 0) == (done.stderr == "")
    return done.stderr.splitlines()


def test_nothing_is_said_where_all_is_there(tools: Path) -> None:
    assert lacks(tools, sys.executable, "setup") == []


def test_a_missing_python_is_named(tools: Path) -> None:
    (sentence,) = lacks(tools, "", "setup")
    assert sentence.startswith("Python 3.11 or newer is missing")


def test_an_old_python_is_named_with_its_version(tools: Path) -> None:
    old = program(tools, "python3", '[ "$1" = -V ] && echo Python 3.9.2; exit 1')
    (sentence,) = lacks(tools, str(old), "setup")
    assert "Python 3.9.2" in sentence
    assert "3.11" in sentence


def test_a_python_without_venv_is_named_with_the_package_that_has_it(tools: Path) -> None:
    bare = program(tools, "python3", 'case "$2" in *ensurepip*) exit 1;; esac')
    (sentence,) = lacks(tools, str(bare), "setup")
    assert "python3-venv" in sentence


def test_the_cluster_needs_go(tools: Path) -> None:
    assert any(sentence.startswith("Go is missing") for sentence in lacks(tools, sys.executable, "test"))


@pytest.mark.parametrize(
    ("version", "enough"), [("go1.25.3", False), ("go1.26.0", True), ("go1.30", True), ("go2.0", True)]
)
def test_the_cluster_needs_a_new_go(tools: Path, version: str, enough: bool) -> None:
    program(tools, "go", f"echo {version}")
    said = lacks(tools, sys.executable, "test")
    assert any("Go is too old" in sentence and version in sentence for sentence in said) is not enough


def test_everything_that_lacks_is_said_at_once(tools: Path) -> None:
    (tools / "id").unlink()
    program(tools, "id", "echo 1000")
    said = lacks(tools, "", "test")
    assert [sentence.split(" is ")[0].split(":")[0] for sentence in said] == ["Python 3.11 or newer", "Go", "Not root"]


def test_a_given_cluster_needs_neither_go_nor_root(tools: Path) -> None:
    assert lacks(tools, sys.executable, "test", REX_TEST_KUBECONFIG="/a/kubeconfig") == []


def test_a_folder_that_is_no_environment_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    done = subprocess.run(
        [ROOT / "scripts" / "setup", sys.executable, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "no Python environment" in done.stderr
    assert (tmp_path / "mine").read_text() == "precious"


def test_make_alone_tells_what_there_is() -> None:
    done = subprocess.run(["make", "--silent"], cwd=ROOT, capture_output=True, text=True, check=True)
    for target in ("setup", "demo", "check", "test", "e2e", "cluster", "cluster-down", "bench"):
        assert f"make {target} " in done.stdout


def test_ci_runs_everything() -> None:
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("exec make test")
    planned = subprocess.run(["make", "--dry-run", "test"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for command in (
        "ruff check",
        "ruff format --check",
        "mypy",
        "lint-imports",
        "not component",
        "component",
        "-m e2e",
    ):
        assert command in planned
