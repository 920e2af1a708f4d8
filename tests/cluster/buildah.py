"""buildah with a storage of our own: builds images from Dockerfiles without a daemon or a container runtime."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from functools import cache as once
from pathlib import Path

from tests.cluster import cache
from tests.cluster.shell import ClusterError, run


def buildah(*arguments: str | Path) -> str:
    """Run buildah. Raises ``ClusterError`` with the end of what it said."""
    return run("buildah", *_storage(), *arguments, timeout=1800)


def build(context: Path, name: str, options: Sequence[str], archive: Path) -> None:
    """Build an image and write it into ``archive``."""
    buildah("bud", "--isolation=chroot", "--layers", "--pull-never", f"--tag={name}", *options, context)
    buildah("push", "--quiet", "--compression-format=zstd", name, f"oci-archive:{archive}:{name}")


def forget_unnamed() -> None:
    """Drop the layers of images that later builds have replaced."""
    buildah("rmi", "--prune", "--force")


@once
def _storage() -> list[str]:
    folder = cache.root() / "containers"
    where = [f"--root={folder}/storage", f"--runroot={folder}/run"]
    # Overlay saves a copy of the whole image per layer, but does not work on top of another overlay.
    for driver in ("overlay", "vfs"):
        options = [*where, f"--storage-driver={driver}"]
        probe = subprocess.run(["buildah", *options, "info"], capture_output=True, timeout=60)
        if probe.returncode == 0:
            return options
    raise ClusterError(f"buildah cannot store images below {folder}: {probe.stderr.decode(errors='replace').strip()}")
