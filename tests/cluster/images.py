"""The images of the tests, built from the project's own Dockerfile without a registry or a daemon.

The Dockerfile takes its base image as an argument. Where no registry can be reached, the base is made of the
distribution's packages with debootstrap; buildah builds on it in a storage of our own below the cache, and the result
goes to the nodes as an OCI archive. Each archive is named after what went into it: an unchanged tree builds nothing.
"""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import cache as once
from pathlib import Path

from tests.cluster import cache, prerequisites
from tests.cluster.shell import ClusterError, Say, run
from tests.cluster.versions import PAUSE_IMAGE

REPOSITORY = Path(__file__).resolve().parents[2]
_SOURCES = ("Dockerfile", ".dockerignore", "pyproject.toml", "README.md", "LICENSE", "requirements", "rex_worker")
_TARGETS = {"operator": (*_SOURCES, "rex_operator"), "worker": (*_SOURCES, "examples")}
_BASE_PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"
_KEPT = 3


def pause(program: Path, say: Say) -> Path:
    """Archive of the image that holds each pod's namespaces; ``program`` is its only file."""
    archive = _archive("pause", [program])
    if not archive.exists():
        prerequisites.ensure(prerequisites.IMAGES[:1], say)
        with cache.lock("images"), tempfile.TemporaryDirectory() as context:
            shutil.copy(program, context)
            (Path(context) / "Dockerfile").write_text('FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n')
            _buildah("bud", "--isolation=chroot", "--tag", PAUSE_IMAGE, context)
            _export(PAUSE_IMAGE, archive)
    return archive


def build(target: str, name: str, say: Say) -> Path:
    """Archive of the Dockerfile's ``target`` (``operator`` or ``worker``, the latter without torch) as image ``name``.

    Raises:
        ClusterError: a program is missing, or the build failed; with the end of what it said.
    """
    name = _whole_name(name)
    archive = _archive(target, [REPOSITORY / source for source in _TARGETS[target]], name, _BASE_PACKAGES)
    if not archive.exists():
        prerequisites.ensure(prerequisites.IMAGES, say)
        with cache.lock("images"):
            base_name = base(say)
            say(f"building the {target} image (about 2 minutes the first time, seconds when only sources changed)")
            with tempfile.TemporaryDirectory() as scratch:
                _buildah(
                    *("bud", "--isolation=chroot", "--layers", "--pull-never", f"--target={target}", f"--tag={name}"),
                    *(f"--build-arg=BASE={base_name}", "--build-arg=WORKER_REQUIREMENTS=requirements/build.txt"),
                    *_pip_settings(Path(scratch)),
                    REPOSITORY,
                )
            _export(name, archive)
            _prune(target)
    return archive


def base(say: Say) -> str:
    """Name, in buildah's storage, of a base image with Python, made of the distribution's packages."""
    release = platform.freedesktop_os_release()
    suite = release["VERSION_CODENAME"] if release["ID"] in ("debian", "ubuntu") else "bookworm"
    name = f"localhost/rex-test-base:{suite}"
    if _buildah("images", "--quiet", "--filter", f"reference={name}").strip():
        return name
    tarball = cache.images() / f"base-{suite}.tar"
    if not tarball.exists():
        say("making a base image with debootstrap (about 3 minutes, then kept)")
        _debootstrap(suite, tarball)
    say("importing the base image")
    container = _buildah("from", "scratch").strip()
    try:
        _buildah("add", "--quiet", container, tarball, "/")
        _buildah("config", "--cmd", "python3", "--env", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", container)
        _buildah("commit", "--quiet", container, name)
    finally:
        _buildah("rm", container)
    return name


def _debootstrap(suite: str, tarball: Path) -> None:
    tarball.parent.mkdir(parents=True, exist_ok=True)
    mirror, components = _mirror(suite)
    with tempfile.TemporaryDirectory(dir=tarball.parent, prefix=".base-") as scratch:
        root = Path(scratch, "root")
        options = ["--variant=minbase", f"--include={_BASE_PACKAGES}", f"--components={components}"]
        run("debootstrap", *options, suite, root, *mirror, timeout=1800, log=Path(scratch, "log"))
        for cached in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale"):
            shutil.rmtree(root / cached, ignore_errors=True)
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


def _pip_settings(scratch: Path) -> list[str]:
    """How this machine's pip reaches its packages, as secrets of the build, so that no image or file keeps it."""
    kept = {}
    options = []
    for line in run(sys.executable, "-m", "pip", "config", "list").splitlines():
        key, _, value = line.partition("=")
        kept[key.rpartition(".")[2]] = str(ast.literal_eval(value))
    for folder in kept.pop("find-links", "").split():
        if Path(folder).is_dir() and any(Path(folder).iterdir()):
            options.append(f"--volume={folder}:{folder}:ro")
            kept["find-links"] = folder
    certificates = Path(kept.pop("cert", "") or os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"))
    if certificates.is_file():
        kept["cert"] = "/run/secrets/ca.crt"
        options.append(f"--secret=id=ca.crt,src={certificates}")
    settings = scratch / "pip.conf"
    settings.touch(mode=0o600)
    settings.write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in kept.items()))
    return [*options, f"--secret=id=pip.conf,src={settings}"]


def _archive(name: str, sources: Iterable[Path], *more: str) -> Path:
    digest = hashlib.sha256(repr(more).encode())
    for source in sources:
        files = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
        for path in files:
            if path.is_file() and path.suffix != ".pyc":
                relative = path.relative_to(source.parent)
                digest.update(f"{relative}\0{path.stat().st_mode & 0o111}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return cache.images() / f"{name}-{digest.hexdigest()[:16]}.tar"


def _whole_name(image: str) -> str:
    """As container runtimes read it: ``rex-operator:1`` is an image of Docker's library."""
    host, slash, _ = image.partition("/")
    if slash and ("." in host or ":" in host or host == "localhost"):
        return image
    return f"docker.io/{image}" if slash else f"docker.io/library/{image}"


def _export(image: str, archive: Path) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    partial = archive.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    _buildah("push", "--quiet", "--compression-format=zstd", image, f"oci-archive:{partial}:{image}")
    partial.rename(archive)


def _prune(name: str) -> None:
    archives = sorted(cache.images().glob(f"{name}-*.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in archives[_KEPT:]:
        old.unlink()
    _buildah("rmi", "--prune", "--force")


def _buildah(*arguments: str | Path) -> str:
    return run("buildah", *_storage(), *arguments, timeout=1800)


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
