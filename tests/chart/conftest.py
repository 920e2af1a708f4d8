"""The real helm, built once and cached."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import programs
from tests.cluster.shell import Say


@pytest.fixture(scope="session")
def helm(say: Say) -> Path:
    return programs.find(("helm",), say)["helm"]
