"""What of the machine the test cluster cannot bring along itself, and how to get it.

Container runtimes, network plug-ins and packet filters come from the distribution. On Debian, as root, they are
installed on the way; elsewhere each missing one is named in a sentence, all of them at once.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.shell import ClusterError, Say, run

CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"), Path("/usr/libexec/cni"))


@dataclass(frozen=True)
class Need:
    """A program, the Debian package that has it (empty: none we would install), and what it is for."""

    program: str
    package: str
    purpose: str
    advice: str = ""

    def sentence(self) -> str:
        """What to tell a user who lacks it."""
        return f"{self.program} is missing ({self.purpose}): {self.advice or f'apt-get install {self.package}'}."


GO = Need("go", "", "builds Kubernetes, etcd and containerd", "install Go 1.26 or newer")
NODES = (
    Need("ip", "iproute2", "makes the cluster's network"),
    Need("nsenter", "util-linux", "enters the cluster's network"),
    Need("iptables", "iptables", "carries service addresses"),
    Need("runc", "runc", "runs containers"),
    Need("bridge", "containernetworking-plugins", "CNI plug-in that gives pods their addresses"),
)
IMAGES = (
    Need("buildah", "buildah", "builds images without a daemon"),
    Need("debootstrap", "debootstrap", "makes the base image"),
)


def cni_folder() -> Path:
    """Folder of the CNI plug-ins. Raises ``ClusterError`` when there is none."""
    for folder in CNI_FOLDERS:
        if (folder / "bridge").exists() and (folder / "host-local").exists():
            return folder
    raise ClusterError("CNI plug-ins are missing: apt-get install containernetworking-plugins.")


def ensure(needs: Iterable[Need], say: Say) -> None:
    """Have every need met, by installing what lacks on Debian as root.

    Raises:
        ClusterError: one sentence for each thing that is still missing.
    """
    missing = [need for need in needs if not _present(need)]
    packages = sorted({need.package for need in missing if need.package})
    if packages and shutil.which("apt-get") and os.geteuid() == 0:
        say(f"installing Debian packages (about 30 s): {' '.join(packages)}")
        environment = {"DEBIAN_FRONTEND": "noninteractive"}
        run("apt-get", "update", "-q", env=environment, timeout=600)
        run("apt-get", "install", "-q", "-y", "--no-install-recommends", *packages, env=environment, timeout=1200)
        missing = [need for need in missing if not _present(need)]
    if missing:
        raise ClusterError("\n".join(need.sentence() for need in missing))


def ensure_root() -> None:
    """Raise ``ClusterError`` unless this is root: kubelets mount, and make network namespaces."""
    if os.geteuid() != 0:
        raise ClusterError(
            "a cluster of real kubelets needs root: run as root, start Docker and install kind, or give a test"
            " cluster's kubeconfig in REX_TEST_KUBECONFIG."
        )


def _present(need: Need) -> bool:
    if need.program == "bridge":
        return any((folder / "bridge").exists() for folder in CNI_FOLDERS)
    return shutil.which(need.program) is not None
