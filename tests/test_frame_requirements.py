"""The locked requirements are whole, agree with each other, and record no address."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "requirements").glob("*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pins(name: str) -> dict[str, str]:
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    return {canonicalize_name(n): v for n, v in re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, re.MULTILINE)}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_pin_has_hashes_and_nothing_else_is_recorded(file: Path) -> None:
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!-]+( ; [^/:]+)? \\", line):
            assert following.startswith("    --hash=sha256:")
        else:
            assert re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line), line


@pytest.mark.parametrize("name", ["operator", "worker", "build"])
def test_images_get_the_versions_that_are_tested(name: str) -> None:
    tested = pins("dev")
    assert {package: tested.get(package) for package in pins(name)} == pins(name)


@pytest.mark.parametrize(
    ("name", "extra"), [("operator", "operator"), ("worker", "worker"), ("dev", "adapters"), ("dev", "dev")]
)
def test_the_lock_holds_what_the_project_asks_for(name: str, extra: str) -> None:
    locked = pins(name)
    for text in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra]]:
        wanted = Requirement(text)
        version = locked.get(canonicalize_name(wanted.name))
        assert version is not None, f"{text}: run make lock"
        assert wanted.specifier.contains(Version(version)), text


def test_the_operator_does_not_carry_torch() -> None:
    assert "torch" not in pins("operator")
    assert "torch" in pins("worker")
