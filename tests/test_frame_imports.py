"""What is imported stays light: the command line and the protocol work where torch is not installed."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import rex_operator
import rex_worker

ROOT = Path(__file__).resolve().parent.parent
WITHOUT_TORCH = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("torch is not installed")
sys.meta_path.insert(0, Absent())
"""
HEAVY = ("torch", "kopf", "scipy", "plotly")
PACKAGES = sorted(
    module.name
    for package in (rex_operator, rex_worker)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if module.ispkg
)


@pytest.mark.parametrize(
    "module",
    [
        "rex_operator.api",
        "rex_operator.channel",
        "rex_operator.cli",
        "rex_operator.cli.app",
        "rex_operator.controller",
        "rex_operator.jobs",
        "rex_operator.local",
        "rex_operator.placement",
        "rex_operator.planning",
        "rex_operator.report",
        "rex_worker",
        "rex_worker.protocol",
    ],
)
def test_importing_needs_no_torch(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{WITHOUT_TORCH}\nimport {module}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_command_line_answers_without_heavy_imports() -> None:
    code = f"import sys, rex_operator.cli.app; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", PACKAGES)
def test_exported_names_exist_and_are_listed_once(name: str) -> None:
    exported = getattr(importlib.import_module(name), "__all__", [])
    assert len(set(exported)) == len(exported)
    for entry in exported:
        assert getattr(importlib.import_module(name), entry) is not None
