"""Where the published measurements lie, if they are on this machine; the project ships none of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

WHERE = "REX_DATA"
_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


def data_folder() -> Path | None:
    """Return the folder with sia/, pollux/, gavel/ and lbb/: from REX_DATA, or ../shared/data beside the checkout."""
    named = os.environ.get(WHERE)
    folder = Path(named) if named else _BESIDE
    return folder if folder.is_dir() else None


needs_data = pytest.mark.skipif(
    data_folder() is None, reason=f"published data are not here: set {WHERE} to the folder with sia/, pollux/, ..."
)


def published() -> Path:
    """Return the folder, in tests that carry ``needs_data``."""
    folder = data_folder()
    assert folder is not None
    return folder
