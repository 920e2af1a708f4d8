"""The interpreter and packages of the running tests, lent to pods.

torch is more than five gigabytes. Instead of baking it into an image for every node's store, worker pods of the tests
mount this machine's own interpreter and packages read-only, in the job's own pod template: nothing of REX knows of it.
"""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PREFIX = "/opt/rex-python"


@dataclass(frozen=True)
class HostPython:
    """Where they are here, and how a pod sees them."""

    base: Path
    """Prefix of the interpreter that the environment was made from."""
    packages: Path
    """The environment's ``site-packages``."""

    @classmethod
    def find(cls) -> HostPython:
        """Those of this process."""
        return cls(Path(sys.base_prefix).resolve(), Path(sysconfig.get_path("purelib")).resolve())

    @property
    def folders(self) -> list[Path]:
        """What must be on the nodes."""
        return [self.base, self.packages]

    @property
    def executable(self) -> str:
        """The interpreter, inside a pod."""
        return f"{_PREFIX}/base/bin/python{sys.version_info.major}.{sys.version_info.minor}"

    def environment(self, *more: str) -> list[dict[str, str]]:
        """Environment of a container that uses it; ``more`` folders are searched for packages, before the lent ones."""
        return [
            {"name": "PYTHONPATH", "value": ":".join([*more, f"{_PREFIX}/packages"])},
            {"name": "LD_LIBRARY_PATH", "value": f"{_PREFIX}/base/lib"},  # where its libpython is, if it has one
            {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
            {"name": "HOME", "value": "/tmp"},
        ]

    def volumes(self) -> list[dict[str, Any]]:
        """Volumes of the pod."""
        return [
            {"name": f"python-{name}", "hostPath": {"path": str(path), "type": "Directory"}}
            for name, path in (("base", self.base), ("packages", self.packages))
        ]

    def mounts(self) -> list[dict[str, Any]]:
        """Volume mounts of the container."""
        return [
            {"name": f"python-{name}", "mountPath": f"{_PREFIX}/{name}", "readOnly": True}
            for name in ("base", "packages")
        ]
