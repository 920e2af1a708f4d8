from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.worker.operator_double import Nursery, Operator, serving


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
