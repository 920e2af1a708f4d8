"""The programs a cluster consists of, built from Go modules because no registry of ready binaries can be relied on.

``find`` looks in three places: ``$KUBEBUILDER_ASSETS`` (the convention of setup-envtest), the cache of exactly these
versions, and else it builds. A build happens in a folder of its own and each program is renamed into the cache when it
is whole, so that an interrupted build leaves nothing half; two builds never run at once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import cache, prerequisites, versions
from tests.cluster.shell import ClusterError, Say, run

_FLAGS = "-s -w"
_BUILD_TIMEOUT = 3600.0


@dataclass(frozen=True)
class Recipe:
    """Programs that are built together. ``build(work, out)`` makes them in ``out``, using the empty folder ``work``."""

    names: tuple[str, ...]
    source: str
    duration: str
    """What to tell the user, on two cores with nothing cached."""
    build: Callable[[Path, Path], None]


def _go(*arguments: str | Path, cwd: Path, bin_folder: Path | None = None) -> str:
    environment = {"CGO_ENABLED": "0", "GOWORK": "off"}
    if bin_folder is not None:
        environment["GOBIN"] = str(bin_folder)
    return run("go", *arguments, cwd=cwd, env=environment, timeout=_BUILD_TIMEOUT)


KUBERNETES_PROGRAMS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
)


def _kubernetes(work: Path, out: Path) -> None:
    # Kubernetes replaces its libraries by folders of its own tree, which other modules cannot use; the same libraries
    # are published as modules under the staging version.
    (work / "go.mod").write_text(f"module build\n\ngo {versions.GO_LANGUAGE}\n")
    module = json.loads(_go("mod", "download", "-json", f"k8s.io/kubernetes@{versions.KUBERNETES}", cwd=work))
    their_mod = (Path(module["Dir"]) / "go.mod").read_text()
    staged = re.findall(r"^\s*(k8s\.io/[a-z0-9.-]+) => \./staging/", their_mod, flags=re.MULTILINE)
    replaces = "".join(f"replace {name} => {name} {versions.KUBERNETES_STAGING}\n" for name in staged)
    with (work / "go.mod").open("a") as mod:
        mod.write(f"{replaces}require k8s.io/kubernetes {versions.KUBERNETES}\n")
    packages = [f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES_PROGRAMS]
    # Main packages cannot be imported; each program's library beside it brings in the same dependencies.
    libraries = [f"{package}/app" if "kubectl" not in package else "k8s.io/kubectl/pkg/cmd" for package in packages]
    imports = "".join(f'\t_ "{library}"\n' for library in libraries)
    (work / "main.go").write_text(f"package main\n\nimport (\n{imports})\n\nfunc main() {{}}\n")
    _go("mod", "tidy", cwd=work)
    version = versions.KUBERNETES
    major, minor, _ = version[1:].split(".")
    stamp = "k8s.io/component-base/version.git"
    flags = f"{_FLAGS} -X {stamp}Version={version} -X {stamp}Major={major} -X {stamp}Minor={minor}"
    _go("build", "-o", f"{out}/", "-ldflags", flags, *packages, cwd=work)


def _etcd(work: Path, out: Path) -> None:
    # `go install` refuses modules with replace directives, so etcd's entry point gets a main of ours.
    (work / "go.mod").write_text(f"module build\n\ngo {versions.GO_LANGUAGE}\n")
    (work / "main.go").write_text(
        'package main\n\nimport (\n\t"os"\n\n\t"go.etcd.io/etcd/server/v3/etcdmain"\n)\n\n'
        "func main() { etcdmain.Main(os.Args) }\n"
    )
    _go("get", f"go.etcd.io/etcd/server/v3@{versions.ETCD}", cwd=work)
    _go("mod", "tidy", cwd=work)
    _go("build", "-o", out / "etcd", "-ldflags", _FLAGS, ".", cwd=work)


_PAUSE = """package main

import (
	"os"
	"os/signal"
	"syscall"
)

// Holds a pod's namespaces, and reaps the orphans of pods that share one process namespace.
func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			os.Exit(0)
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}
"""


def _pause(work: Path, out: Path) -> None:
    (work / "go.mod").write_text(f"module build\n\ngo {versions.GO_LANGUAGE}\n")
    (work / "main.go").write_text(_PAUSE)
    _go("build", "-o", out / "pause", "-ldflags", _FLAGS, ".", cwd=work)


def _install(*packages: str) -> Callable[[Path, Path], None]:
    def build(work: Path, out: Path) -> None:
        for package in packages:
            _go("install", "-ldflags", _FLAGS, package, cwd=work, bin_folder=out)

    return build


CONTAINERD_PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")
_CONTAINERD = [f"github.com/containerd/containerd/v2/cmd/{name}@{versions.CONTAINERD}" for name in CONTAINERD_PROGRAMS]
_HELM = f"helm.sh/helm/v3/cmd/helm@{versions.HELM}"
_COREDNS = f"github.com/coredns/coredns@{versions.COREDNS}"
_KWOK = f"sigs.k8s.io/kwok/cmd/kwok@{versions.KWOK}"
RECIPES = (
    Recipe(KUBERNETES_PROGRAMS, f"Kubernetes {versions.KUBERNETES}", "about 7 minutes", _kubernetes),
    Recipe(("etcd",), f"etcd {versions.ETCD}", "about 1 minute", _etcd),
    Recipe(CONTAINERD_PROGRAMS, f"containerd {versions.CONTAINERD}", "about 4 minutes", _install(*_CONTAINERD)),
    Recipe(("helm",), f"helm {versions.HELM}", "about 2 minutes", _install(_HELM)),
    Recipe(("coredns",), f"CoreDNS {versions.COREDNS}", "about 5 minutes", _install(_COREDNS)),
    Recipe(("kwok",), f"kwok {versions.KWOK}", "about 3 minutes", _install(_KWOK)),
    Recipe(("pause",), "the pause program", "a few seconds", _pause),
)

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
WHOLE = (*CONTROL_PLANE, "kube-scheduler", "kubelet", "kube-proxy", "coredns", "pause", *CONTAINERD_PROGRAMS)
ALL = (*WHOLE, "helm")
BESIDE_A_CLUSTER = (*CONTROL_PLANE, "helm")
"""What the tests need even where the cluster is given or made by kind."""


def find(names: Iterable[str], say: Say) -> dict[str, Path]:
    """Path of each named program; builds what is nowhere to be found.

    Raises:
        ClusterError: Go is missing, or a build failed; with the end of what it said.
    """
    names = list(names)
    found = {name: path for name in names if (path := _existing(name)) is not None}
    if len(found) < len(names):
        prerequisites.ensure([prerequisites.GO], say)
        with cache.lock("programs"):
            for recipe in RECIPES:
                lacking = [name for name in recipe.names if name in names and _existing(name) is None]
                if lacking:
                    _build(recipe, say)
        found = {name: path for name in names if (path := _existing(name)) is not None}
    if unknown := sorted(set(names) - set(found)):
        raise ClusterError(f"no recipe makes these programs: {', '.join(unknown)}")
    return found


def _existing(name: str) -> Path | None:
    folders = [cache.programs()]
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        folders.insert(0, Path(assets))
    return next((folder / name for folder in folders if os.access(folder / name, os.X_OK)), None)


def _build(recipe: Recipe, say: Say) -> None:
    say(
        f"building {', '.join(recipe.names)} from {recipe.source}: {recipe.duration} on two cores the first time,"
        " then kept"
    )
    begun = time.monotonic()
    target = cache.programs()
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target, prefix=".build-") as scratch:
        work, out = Path(scratch, "work"), Path(scratch, "out")
        work.mkdir()
        out.mkdir()
        recipe.build(work, out)
        for name in recipe.names:
            if not (out / name).exists():
                raise ClusterError(f"the build of {recipe.source} made no {name}")
            shutil.move(out / name, target / name)
    say(f"built {recipe.source} in {time.monotonic() - begun:.0f} s")
