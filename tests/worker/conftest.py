from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.worker.operator_double import Operator, operator


@pytest_asyncio.fixture
async def rex(tmp_path: Path) -> AsyncIterator[Operator]:
    """A scripted operator."""
    async with operator(tmp_path) as scripted:
        yield scripted
