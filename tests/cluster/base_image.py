"""A base image with Python, made of the distribution's packages where no image registry can be reached."""

from __future__ import annotations

import platform
import shutil
import tempfile
from pathlib import Path

from tests.cluster import cache
from tests.cluster.buildah import buildah
from tests.cluster.shell import Say, run

PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"
_NOT_NEEDED = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale")


def base_image(say: Say) -> str:
    """Its name in buildah's storage; made the first time. Raises ``ClusterError``."""
    release = platform.freedesktop_os_release()
    suite = release["VERSION_CODENAME"] if release["ID"] in ("debian", "ubuntu") else "bookworm"
    name = f"localhost/rex-test-base:{suite}"
    if buildah("images", "--quiet", "--filter", f"reference={name}").strip():
        return name
    tarball = cache.images() / f"base-{suite}.tar"
    if not tarball.exists():
        say("making a base image with debootstrap (about 3 minutes, then kept)")
        _debootstrap(suite, tarball)
    container = buildah("from", "scratch").strip()
    try:
        buildah("add", "--quiet", container, tarball, "/")
        buildah("config", "--cmd", "python3", "--env", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", container)
        buildah("commit", "--quiet", container, name)
    finally:
        buildah("rm", container)
    return name


def _debootstrap(suite: str, tarball: Path) -> None:
    tarball.parent.mkdir(parents=True, exist_ok=True)
    mirror, components = _mirror(suite)
    with tempfile.TemporaryDirectory(dir=tarball.parent, prefix=".base-") as scratch:
        root = Path(scratch, "root")
        options = ["--variant=minbase", f"--include={PACKAGES}", f"--components={components}"]
        run("debootstrap", *options, suite, root, *mirror, timeout=1800, log=Path(scratch, "log"))
        for folder in _NOT_NEEDED:
            shutil.rmtree(root / folder, ignore_errors=True)
        partial = Path(scratch, "base.tar")
        run("tar", "-C", root, "--one-file-system", "--exclude=./dev/*", "--exclude=./proc/*", "-cf", partial, ".")
        partial.rename(tarball)


def _mirror(suite: str) -> tuple[list[str], str]:
    """The mirror that apt on this machine takes ``suite`` from, and its components; nothing: debootstrap's default."""
    if not shutil.which("apt-get"):
        return [], "main"
    listed = run("apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI) $(COMPONENT)", "Identifier: Packages")
    found = [line.split() for line in sorted(set(listed.splitlines()))]
    ours = [(uri, component) for release, uri, component in found if release == suite]
    if not ours:
        return [], "main"
    mirror = ours[0][0]
    return [mirror], ",".join(sorted({component for uri, component in ours if uri == mirror}))
