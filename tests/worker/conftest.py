from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.worker.operator_double import Nursery, Operator, serving


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of this process have no operator, no checkpoint folder, no emulated device, and one seed."""
    for name in ("REX_CHANNEL_URL", "REX_CHECKPOINT_DIR", "REX_EMULATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("REX_JOB_SEED", "5")


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest_asyncio.fixture
async def rex(tmp_path: Path, nursery: Nursery) -> AsyncIterator[Operator]:
    """A scripted operator on a loopback port; the workers that are left at the end are killed."""
    scripted = Operator(tmp_path, nursery)
    async with serving(scripted):
        yield scripted
        await scripted.clear()
