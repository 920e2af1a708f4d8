"""Renders the chart with the real helm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.cluster.shell import run

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "rex-operator"

Manifest = dict[str, Any]


def render(helm: Path, *options: str, name: str = "rex", namespace: str = "here") -> list[Manifest]:
    """The chart's objects. Raises ``ClusterError`` with helm's words."""
    text = run(helm, "template", name, CHART, f"--namespace={namespace}", "--kube-version=1.36.0", *options)
    return [item for item in yaml.safe_load_all(text) if item]


def only(items: list[Manifest], kind: str, ending: str = "") -> Manifest:
    """The one object of that kind whose name ends so."""
    (found,) = [item for item in items if item["kind"] == kind and item["metadata"]["name"].endswith(ending)]
    return found
