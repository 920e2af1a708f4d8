"""The images of the tests, built from the project's own Dockerfile.

The Dockerfile takes its base image as an argument. Docker's engine builds on the official one, where it runs; elsewhere
buildah builds on one made of the distribution's packages. The result goes to the nodes as an archive, which is named
after what went into it: an unchanged tree builds nothing.
"""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tests.cluster import buildah, cache, docker, prerequisites
from tests.cluster.base_image import PACKAGES, base_image
from tests.cluster.shell import Say, run
from tests.cluster.versions import PAUSE_IMAGE

REPOSITORY = Path(__file__).resolve().parents[2]
_VERSION = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
NAMES = {"operator": f"rex-operator:{_VERSION}", "worker": "rex-worker:test"}
"""The operator's is that of ``deploy/`` and the chart; the worker's is for the tests' own templates."""
_SOURCES = ("Dockerfile", ".dockerignore", "pyproject.toml", "README.md", "LICENSE", "requirements", "rex_worker")
_TARGETS = {"operator": (*_SOURCES, "rex_operator"), "worker": (*_SOURCES, "examples")}
_KEPT = 3
_Tool = Callable[[Path, str, Sequence[str], Path], None]


def pause(program: Path, say: Say) -> Path:
    """Archive of the image that holds each pod's namespaces; ``program`` is its only file."""
    archive = _archive("pause", [program])
    if not archive.exists():
        prerequisites.ensure(prerequisites.IMAGES[:1], say)
        with cache.lock("images"), tempfile.TemporaryDirectory() as context:
            shutil.copy(program, context)
            (Path(context) / "Dockerfile").write_text('FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n')
            _build(buildah.build, Path(context), PAUSE_IMAGE, [], archive)
    return archive


def build(target: str, name: str, say: Say) -> Path:
    """Archive of the Dockerfile's ``target`` (``operator`` or ``worker``, the latter without torch) as image ``name``.

    Raises:
        ClusterError: a program is missing, or the build failed; with the end of what it said.
    """
    name = _whole_name(name)
    with_docker = docker.answers()
    how = "docker" if with_docker else PACKAGES
    archive = _archive(target, [REPOSITORY / source for source in _TARGETS[target]], name, how)
    if archive.exists():
        return archive
    if not with_docker:
        prerequisites.ensure(prerequisites.IMAGES, say)
    with cache.lock("images"), tempfile.TemporaryDirectory() as scratch:
        options = [f"--target={target}", *_pip_settings(Path(scratch))]
        if target == "worker":
            options.append("--build-arg=WORKER_REQUIREMENTS=requirements/build.txt")
        if not with_docker:
            options.append(f"--build-arg=BASE={base_image(say)}")
        say(f"building the {target} image (about 2 minutes the first time, seconds when only sources changed)")
        _build(docker.build if with_docker else buildah.build, REPOSITORY, name, options, archive)
        _prune(target)
        if not with_docker:
            buildah.forget_unnamed()
    return archive


def _build(tool: _Tool, context: Path, name: str, options: Sequence[str], archive: Path) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    partial = archive.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    tool(context, name, options, partial)
    partial.rename(archive)


def _pip_settings(scratch: Path) -> list[str]:
    """How this machine's pip reaches its packages, as secrets of the build, so that no image or file keeps it."""
    kept, options = {}, []
    for line in run(sys.executable, "-m", "pip", "config", "list").splitlines():
        key, _, value = line.partition("=")
        kept[key.rpartition(".")[2]] = str(ast.literal_eval(value))
    # Folders of this machine are not there in the build.
    links = [link for link in kept.pop("find-links", "").split() if "://" in link]
    if links:
        kept["find-links"] = " ".join(links)
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


def _prune(name: str) -> None:
    archives = sorted(cache.images().glob(f"{name}-*.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in archives[_KEPT:]:
        old.unlink()
