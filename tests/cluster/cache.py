"""Where built programs, images and the state of running clusters are kept: outside the repository.

Everything under the folder can be deleted at any time while no cluster runs; it is made again when needed.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.versions import KEY


def root() -> Path:
    """``$REX_TEST_CACHE``, or ``~/.cache/rex``."""
    return Path(os.environ.get("REX_TEST_CACHE") or Path.home() / ".cache" / "rex").absolute()


def programs() -> Path:
    """Folder of the built programs of exactly these versions."""
    return root() / f"bin-{KEY}"


def images() -> Path:
    """Folder of image archives."""
    return root() / "images"


def clusters() -> Path:
    """Folder with one state folder per cluster."""
    return root() / "clusters"


@contextmanager
def lock(name: str) -> Iterator[None]:
    """Hold the cache's lock ``name``; it goes with the process, so a crash leaves nothing locked."""
    descriptor = _open(name)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def try_lock(name: str) -> int | None:
    """Take the lock ``name`` if nobody has it: a descriptor to close later, or None."""
    descriptor = _open(name)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _open(name: str) -> int:
    folder = root() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    return os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
