"""One version everywhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

from rex_operator import __version__

ROOT = Path(__file__).resolve().parent.parent


def test_the_project_has_the_packages_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == __version__


def test_the_changelog_tells_of_this_version() -> None:
    versions = re.findall(r"^## \[(\d[^\]]*)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == __version__


def test_the_chart_installs_this_version() -> None:
    chart = yaml.safe_load((ROOT / "charts" / "rex-operator" / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == __version__
