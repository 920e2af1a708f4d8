"""The small commands: they answer at once, and need neither torch nor a cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rex_operator import __version__
from rex_operator.cli.app import app
from tests.local.scene import ROOT, write_manifest


def test_version() -> None:
    assert CliRunner().invoke(app, ["version"]).output == f"rex {__version__}\n"


def test_help_names_every_command() -> None:
    output = CliRunner().invoke(app, ["--help"]).output
    for command in ("run", "report", "explain", "validate", "version", "operator"):
        assert command in output


def test_the_command_alone_imports_nothing_heavy() -> None:
    code = "import sys, rex_operator.cli.app; print(*sys.modules)"
    names = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not {"torch", "scipy", "sklearn", "aiohttp", "kubernetes", "plotly", "numpy"} & set(names.split())


WITHOUT_TORCH = """
import importlib.abc, sys

class NoTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name=name)

sys.meta_path.insert(0, NoTorch())
"""


@pytest.mark.parametrize("module", ["running", "explain", "validate"])
def test_rex_works_without_torch(module: str) -> None:
    code = f"{WITHOUT_TORCH}\nimport rex_operator.cli.{module}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_valid_manifest(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["validate", "-f", str(write_manifest(tmp_path))])
    assert result.exit_code == 0
    assert "valid" in result.output
    assert "claimName" in result.output, "what a cluster would miss is said"


def test_the_examples_are_valid() -> None:
    for file in sorted((ROOT / "examples").glob("*/rexjob.yaml")):
        result = CliRunner().invoke(app, ["validate", "-f", str(file)])
        assert result.exit_code == 0, result.output
