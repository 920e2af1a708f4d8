"""An image archive is named after what went into it: an unchanged tree builds nothing, a changed one does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import images


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "package" / "__pycache__").mkdir(parents=True)
    (tmp_path / "package" / "module.py").write_text("x = 1\n")
    (tmp_path / "package" / "__pycache__" / "module.pyc").write_text("compiled")
    return tmp_path / "package"


def _name(tree: Path, *more: str) -> str:
    return images._archive("operator", [tree], *more).name


def test_same_content_has_the_same_name(tree: Path) -> None:
    before = _name(tree)
    (tree / "module.py").write_text("x = 1\n")
    (tree / "__pycache__" / "other.pyc").write_text("compiled by another interpreter")
    assert _name(tree) == before


def test_each_change_has_another_name(tree: Path) -> None:
    names = {_name(tree), _name(tree, "another base")}
    (tree / "module.py").write_text("x = 2\n")
    names.add(_name(tree))
    (tree / "module.py").rename(tree / "renamed.py")
    names.add(_name(tree))
    (tree / "renamed.py").chmod(0o755)
    names.add(_name(tree))
    assert len(names) == 5


@pytest.mark.parametrize(
    ("given", "whole"),
    [
        ("rex-operator:0.1.0", "docker.io/library/rex-operator:0.1.0"),
        ("somebody/rex:1", "docker.io/somebody/rex:1"),
        ("registry.local/rex:1", "registry.local/rex:1"),
        ("localhost/rex:1", "localhost/rex:1"),
        ("registry:5000/rex", "registry:5000/rex"),
    ],
)
def test_image_names_are_read_as_runtimes_read_them(given: str, whole: str) -> None:
    assert images._whole_name(given) == whole
