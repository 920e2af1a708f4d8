"""Docker's engine, where it runs: kind needs it, and it builds images without buildah."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache as once
from pathlib import Path

from tests.cluster.shell import ClusterError, run


@once
def answers() -> bool:
    """Whether the engine, not only the client, is there."""
    try:
        run("docker", "info", timeout=20)
    except ClusterError:
        return False
    return True


def build(context: Path, name: str, options: Sequence[str], archive: Path) -> None:
    """Build an image with BuildKit and write it into ``archive``."""
    run("docker", "build", f"--tag={name}", *options, context, env={"DOCKER_BUILDKIT": "1"}, timeout=1800)
    run("docker", "save", "--output", archive, name, timeout=600)
